"""A device and what it is handed: what arrives whole becomes its draft, and nothing else touches the one that works."""

import asyncio
import errno
import shutil
from dataclasses import replace

import pytest

from adapt.shelf import draft_fetch, shelf
from adapt.shelf.command import fetch_draft, pull_draft
from adapt.shelf.config import DraftPullConfig
from adapt.shelf.shelf import DraftShelf
from opensled.cli import paired
from opensled.core.errors import (
    DraftRefused,
    ModelError,
    NotFound,
    Overloaded,
    ProtocolError,
    Unreachable,
    UsageError,
    VocabularyMismatch,
)
from opensled.models import store
from tests.handed_out import GGUF, KITCHEN, STRANGER, WEIGHTS, SaidLink, handed, manifest, signed

OTHER = b"GGUF" + WEIGHTS[:3:-1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(draft_fetch, "PAUSE", 0.001)


def fetch(draft=None, link=None, signer=KITCHEN):
    return asyncio.run(fetch_draft(link or SaidLink(signed(draft or manifest())), signer))


def weights():
    """Of the draft that `--draft-model adapted` loads."""
    return store.model_file("adapted", "*.gguf").read_bytes()


def other(serial, **changes):
    """Another draft, and a link to the server that hands it out."""
    draft = manifest(serial, files=(handed(OTHER),), **changes)
    return SaidLink(signed(draft), {handed(OTHER).sha256: OTHER})


def test_it_becomes_the_draft_that_the_device_loads():
    with pytest.raises(NotFound, match="opensled drafts pull"):
        store.model_path("adapted")
    kept, fetched = fetch()
    assert fetched and kept.draft == manifest()
    assert store.model_path("adapted") == kept.path and weights() == WEIGHTS
    assert "adapted" in store.known_models() and store.is_name("adapted")
    again, fetched = fetch()
    assert not fetched and again.path == kept.path


def test_the_next_one_and_back():
    fetch()
    fetch(link=other(2))
    assert weights() == OTHER
    assert pull_draft(DraftPullConfig(previous=True)) == 0
    assert weights() == WEIGHTS
    with pytest.raises(NotFound, match="no earlier draft"):
        pull_draft(DraftPullConfig(previous=True))
    kept, fetched = fetch(link=other(2))  # forward again, without a byte
    assert not fetched and kept.draft.serial == 2 and weights() == OTHER


def test_a_rollback_is_a_new_serial_and_its_bytes_are_here():
    fetch()
    fetch(link=other(2))
    link = SaidLink(signed(manifest(3)), {})
    kept, fetched = fetch(link=link)
    assert fetched and kept.draft.serial == 3 and weights() == WEIGHTS
    assert len(link.asked) == 1  # the manifest alone


def test_two_drafts_stay_and_no_parts():
    for serial in (1, 2, 3, 4):
        fetch(link=other(serial) if serial % 2 else SaidLink(signed(manifest(serial))))
    here = DraftShelf(store.adapted_folder(), KITCHEN)
    assert [kept.draft.serial for kept in here.list_drafts()] == [3, 4]
    assert not list(here.folder.glob(".*.part")) and not list(here.folder.glob(".new-*"))


class Broken(SaidLink):
    """Ends after some parts, again and again."""

    def __init__(self, *arguments, parts=1, error=None, **changes):
        super().__init__(*arguments, **changes)
        self._parts, self._error = parts, error

    async def draft_parts(self, file="", offset=0):
        count = 0
        async for part in super().draft_parts(file, offset):
            if file and count == self._parts:
                if self._error:
                    raise self._error
                return
            count += 1
            yield part


@pytest.mark.parametrize("error", [None, Unreachable("gone"), Overloaded("full", retry_after=0.001)])
def test_a_transfer_that_breaks_goes_on_where_it_was(error):
    link = Broken(signed(manifest()), error=error)
    fetch(link=link)
    assert weights() == WEIGHTS
    assert [offset for file, offset in link.asked if file] == [0, 65536, 131072, 196608]


def test_a_pull_that_was_ended_goes_on_too():
    with pytest.raises(Unreachable, match="again to continue"):
        fetch(link=Broken(signed(manifest()), {handed().sha256: WEIGHTS[:100_000]}))
    link = SaidLink(signed(manifest()))
    fetch(link=link)
    assert link.asked[-1] == (handed().sha256, 100_000) and weights() == WEIGHTS


REFUSED = {
    "another key": (DraftRefused, "not signed", SaidLink(signed(manifest(9), STRANGER))),
    "another tenant": (DraftRefused, "of 'garage'.*to 'kitchen'", SaidLink(signed(manifest(9, tenant="garage")))),
    "an older serial": (DraftRefused, "serial 1, but this device has had 2", SaidLink(signed(manifest(1)))),
    "another draft of this serial": (DraftRefused, "two drafts have serial 2", SaidLink(signed(manifest(2)))),
    "another vocabulary": (
        VocabularyMismatch, "another vocabulary", SaidLink(signed(manifest(9, fingerprint="a" * 64))),
    ),
    "other bytes": (ModelError, "damaged", SaidLink(signed(manifest(9)), {handed().sha256: OTHER})),
    "more bytes than promised": (
        ProtocolError, "sent more of", SaidLink(signed(manifest(9)), {handed().sha256: WEIGHTS + b"x"}),
    ),
    "a cut file": (Unreachable, "broke off", SaidLink(signed(manifest(9)), {handed().sha256: WEIGHTS[:70_000]})),
    "nothing": (NotFound, "no draft is handed out", SaidLink(None)),
}  # fmt: skip


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_wrong_leaves_the_draft_that_works(wrong):
    fetch(link=other(2))
    kind, said, link = REFUSED[wrong]
    with pytest.raises(kind, match=said):
        fetch(link=link)
    assert weights() == OTHER and DraftShelf(store.adapted_folder(), KITCHEN).newest == 2
    fetch(draft=manifest(10))  # and the next right one comes
    assert weights() == WEIGHTS


def test_an_old_draft_is_refused_also_after_going_back():
    fetch()
    fetch(link=other(5))
    pull_draft(DraftPullConfig(previous=True))
    with pytest.raises(DraftRefused, match="has had 5"):
        fetch(draft=manifest(4))


def test_a_full_disk(monkeypatch):
    fetch()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shelf, "_place", full)
    with pytest.raises(ModelError, match="its disk is full"):
        fetch(link=other(2))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(ModelError, match="its disk is full"):
        fetch(link=other(2))
    assert weights() == WEIGHTS


def test_a_file_that_was_changed_here_is_fetched_again():
    kept, _ = fetch()
    (kept.path / GGUF).write_bytes(OTHER)
    _, fetched = fetch()
    assert fetched and weights() == WEIGHTS


@pytest.mark.parametrize("at", ["rename", "newest", "current"])
def test_a_pull_that_is_cut_off_anywhere_leaves_one_whole_draft(at, monkeypatch):
    """Cut off while the draft moves to its place, before its serial counts, before it is selected."""
    fetch()
    write = shelf.write_whole

    def cut(path, content, private=False):
        if path.name == at or at == "rename":
            raise KeyboardInterrupt
        write(path, content, private)

    monkeypatch.setattr(shelf, "write_whole", cut)
    with pytest.raises(KeyboardInterrupt):
        fetch(link=other(2))
    monkeypatch.setattr(shelf, "write_whole", write)
    assert weights() == WEIGHTS
    fetch(link=other(2))
    assert weights() == OTHER


def test_two_files_and_two_with_the_same_bytes():
    files = (handed(), handed(OTHER, "b.onnx"), handed(OTHER, "c.onnx.data"))
    link = SaidLink(
        signed(manifest(files=files)),
        {each.sha256: data for each, data in zip(files, (WEIGHTS, OTHER, OTHER))},
    )
    kept, _ = fetch(link=link)
    assert (kept.path / "c.onnx.data").read_bytes() == OTHER == (kept.path / "b.onnx").read_bytes()


def test_a_damaged_note_of_the_current_draft_is_no_draft():
    fetch()
    (store.adapted_folder() / "current").write_bytes(b"\xff\xfe")
    assert store.adapted_path() is None and "adapted" not in store.known_models()
    fetch()
    assert weights() == WEIGHTS


# -- who signs ----------------------------------------------------------------------------------------------------


def test_no_signer_is_trusted_that_nobody_gave():
    with pytest.raises(UsageError, match=r"--signer TENANT:KEY is missing.*not the server"):
        pull_draft(DraftPullConfig())
    with pytest.raises(UsageError, match="fetch one"):
        pull_draft(DraftPullConfig(previous=True))


def test_a_signer_comes_with_the_pairing_and_for_that_server_alone():
    from adapt.shelf.command import _signer

    paired.keep("hub:7411", "authority", "ab" * 32, str(KITCHEN))
    assert _signer(DraftPullConfig(server="hub:7411")) == KITCHEN == _signer(DraftPullConfig(server="mdns"))
    with pytest.raises(UsageError, match="is missing"):
        _signer(DraftPullConfig(server="other:7411"))
    paired.forget()
    with pytest.raises(UsageError, match="is missing"):
        _signer(DraftPullConfig(server="mdns"))
    paired.keep("hub:7411", "authority", "ab" * 32)
    with pytest.raises(UsageError, match="is missing"):
        _signer(DraftPullConfig(server="hub:7411"))


def test_the_signer_of_the_current_draft_is_remembered():
    from adapt.shelf.command import _signer

    fetch()
    assert _signer(DraftPullConfig()) == KITCHEN
    garage = replace(KITCHEN, tenant="garage")
    assert _signer(DraftPullConfig(signer=str(garage))) == garage


def test_pull_says_where_adapted_drafts_come_from():
    from opensled.models.pull import ready

    with pytest.raises(NotFound, match="opensled drafts pull"):
        ready("adapted")
