"""What `opensled pull` says of hubs that refuse, that cannot be reached, and that lie; and of this machine's limits."""

import errno
import json
import shutil
from collections import namedtuple

import pytest

from opensled.models import download, hub_client
from tests.hub_server import FOLDER, NAME, OLDER, complaint, files, folder, pull, running
from tests.hub_server import hub as hub


def test_a_gated_repository_says_how_to_give_a_token(hub, capsys, monkeypatch):
    hub.repositories[NAME].gated = True
    for token in ("", "hf_wrong"):
        monkeypatch.setenv("HF_TOKEN", token)
        assert pull(f"{NAME}:Q4_K_M") == 4
        line = complaint(capsys)
        assert (
            f"{NAME} is gated: accept its licence at {hub.address}/{NAME}" in line
            and "HF_TOKEN=hf_..." in line
        )
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert pull(f"{NAME}:Q4_K_M") == 0


def test_the_token_of_hf_auth_login_is_taken(hub, tmp_path):
    hub.repositories[NAME].gated = True
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/token").write_text(f"{hub.token}\n")
    assert pull(f"{NAME}:Q4_K_M") == 0


def test_the_token_stays_with_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    with running() as store_of_files:
        store_of_files.repositories = hub.repositories
        hub.elsewhere = store_of_files.address
        assert pull(f"{NAME}:Q4_K_M") == 0
        assert set(hub.tokens) == {f"Bearer {hub.token}"} and set(store_of_files.tokens) == {None}


def test_a_token_never_travels_in_clear_text(hub, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    assert pull(NAME) == 2
    assert "your token in clear text" in complaint(capsys)


def test_a_name_that_the_hub_does_not_have(hub, capsys):
    assert pull("org/nothing") == 3
    assert f"{hub.address} has no org/nothing that is public; check the name" in complaint(capsys)


@pytest.mark.parametrize(
    ("variable", "value", "code", "said"),
    [
        ("HF_ENDPOINT", "http://127.0.0.1:9", 5, "no hub at http://127.0.0.1:9: Connection refused; connect to"),
        ("HF_ENDPOINT", "'127.0.0.1:9/'", 5, "no hub at https://127.0.0.1:9: Connection refused"),
        ("HF_ENDPOINT", "file:///etc", 2, "is not the address of a hub"),
        ("HF_HUB_OFFLINE", "1", 5, "HF_HUB_OFFLINE is set"),
        ("HF_TOKEN", "two\nlines", 2, "HF_TOKEN holds characters"),
    ],
)  # fmt: skip
def test_no_hub(variable, value, code, said, hub, capsys, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert pull(NAME) == code
    assert said in complaint(capsys)


def test_a_full_disk_before_and_in_the_middle(hub, capsys, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10_000_000))
    assert pull(f"{NAME}:Q4_K_M") == 1
    assert "cannot be written: its disk is full (67.1 MB needed, 10.0 MB free): make room, or" in complaint(
        capsys
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40))

    def full(self, chunk):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download._Content, "write", full)
    assert pull(f"{NAME}:Q4_K_M") == 1
    assert "make room, or name another folder in OPENSLED_CACHE_DIR" in complaint(capsys)


def test_two_pulls_of_a_repository_at_once(hub, capsys):
    fcntl = pytest.importorskip("fcntl")
    folder().mkdir(parents=True)
    with (folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert pull(NAME) == 1
    assert "another opensled pull writes into" in complaint(capsys)


SHA = {"sha": OLDER}


@pytest.mark.parametrize(
    "listing",
    [
        [],
        {},
        {**SHA, "siblings": 3},
        {"sha": "main", "siblings": []},
        {**SHA, "siblings": [{"rfilename": "../../evil-q4_k_m.gguf", "size": 4}]},
        {**SHA, "siblings": [{"rfilename": "/etc/evil-q4_k_m.gguf", "size": 4}]},
        {**SHA, "siblings": [{"rfilename": "a\\..\\evil-q4_k_m.gguf", "size": 4}]},
        {**SHA, "siblings": [{"rfilename": "C:evil-q4_k_m.gguf", "size": 4}]},
        {**SHA, "siblings": [{"rfilename": "a//q4_k_m.gguf", "size": 4}]},
        {**SHA, "siblings": [{"rfilename": "\x1b[2Ja-q4_k_m.gguf", "size": 4}]},
        {**SHA, "siblings": [{"rfilename": 7}]},
        {**SHA, "siblings": [{"rfilename": "a-q4_k_m.gguf", "size": 10**30}]},
        {**SHA, "siblings": [{"rfilename": "a\x1b[2J" * 9000, "size": 10**30}]},
        {**SHA, "siblings": [{"rfilename": "a-q4_k_m.gguf", "lfs": {"size": str(10**30)}}]},
    ],
)
def test_a_hostile_listing_fetches_nothing(listing, hub, capsys):
    hub.repositories[NAME].listing = listing
    assert pull(NAME) == 1
    line = complaint(capsys)
    assert "the hub's answer about" in line and len(line) < 5000 and line.isprintable()
    assert not any("/resolve/" in path for path in hub.asked) and files() == {}


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ('</a?b=1,2>; rel="next"', "/a?b=1,2"),
        ('</a>; rel="prev", </b>; title="x, y"; rel=next', "/b"),
        ("<//hub.example/b>; rel=next", "//hub.example/b"),  # a path of this hub
        ('<https://other.example/b>; rel="next"', None),
        ("</a>; rel=first", None),
        ("<>;" * 20_000, None),  # a pattern over all of it takes half a minute
    ],
)
def test_the_next_page_is_one_of_this_hub(link, path, hub):
    assert hub_client.HubClient()._next_page(link) == path


def test_the_pages_of_a_listing_have_one_bound_together(hub, capsys, monkeypatch):
    hub.page, listing = 1, json.dumps(hub.listing("org/plain", ""))
    monkeypatch.setattr(hub_client, "MAX_ANSWER", len(listing) // 2)
    assert pull("org/plain") == 5
    assert "it is not a model hub" in complaint(capsys) and files("org/plain") == {}


def test_a_text_that_is_too_large_is_not_fetched(hub, capsys):
    siblings = [{"rfilename": name, "size": len(content)} for name, content in FOLDER.items()]
    hub.repositories["org/plain"].listing = {
        **SHA,
        "siblings": [*siblings, {"rfilename": "huge.json", "size": 1 << 30}],
    }
    assert pull("org/plain") == 1
    assert "huge.json has 1074 MB" in complaint(capsys)
