"""Kept texts on disk: quota, time to live, who reads them, that deletion deletes; and `opensled kept`."""

import json
import shutil
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from adapt.kept import kept_store as module
from adapt.kept.kept_store import KeptStore, KeptText
from lab.training.adapting.material import read_kept
from opensled.cli import main as cli
from opensled.core.errors import NotFound, UsageError, VocabularyMismatch
from tests.kept_texts import WORDS, text


def test_a_quota_and_a_time_to_live(tmp_path):
    now = [1000.0]
    store = KeptStore(tmp_path, 0, 100.0, lambda: now[0])
    store.write(text(), WORDS)
    [held] = store.summarize()
    size = held.bytes
    store = KeptStore(tmp_path, 2 * size + size // 2, 100.0, lambda: now[0])
    for _ in range(3):
        now[0] += 10
        store.write(text(), WORDS)
    [held] = store.summarize()
    assert (held.tenant, held.texts, held.oldest, held.newest) == ("a", 2, 1020.0, 1030.0)
    store.write(text("b"), WORDS)  # a quota is each tenant's own
    assert [each.texts for each in store.summarize()] == [2, 1]
    now[0] = 1125.0
    store.expire()
    assert [(each.tenant, each.texts) for each in store.summarize()] == [("a", 1), ("b", 1)]
    now[0] = 1200.0
    store.expire()
    assert store.summarize() == []
    assert list(tmp_path.iterdir()) == []
    assert not KeptStore(tmp_path, 10).write(text(), WORDS)  # larger than the quota


def test_deletion_deletes_also_what_a_server_still_has_in_hand(tmp_path):
    now = [1000.0]
    store = KeptStore(tmp_path, clock=lambda: now[0])
    store.write(text(), WORDS)
    store.write(text("b"), WORDS)
    assert store.delete("a").texts == 1
    assert not store.folder_of("a").exists()
    assert not store.write(text(opened=999.0), WORDS)  # its sequence had begun before
    assert [each.tenant for each in store.summarize()] == ["b"]
    assert store.write(text(opened=1001.0), WORDS)
    assert [each.tenant for each in store.summarize()] == ["a", "b"]


def test_a_deletion_during_a_write_wins(tmp_path, monkeypatch):
    store, other = KeptStore(tmp_path), KeptStore(tmp_path)
    write, begun = module.write_whole, []

    def slow(path: Path, content: bytes, private: bool = False) -> None:
        if path.suffix == ".npz" and not begun:
            begun.append(path)
            other.delete("a")
            path.parent.mkdir(exist_ok=True)
        write(path, content, private)

    monkeypatch.setattr(module, "write_whole", slow)
    assert not store.write(text(), WORDS)
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("fails", [False, True], ids=["before it is written", "in its midst"])
def test_what_began_after_a_deletion_is_kept_although_its_folder_still_goes(tmp_path, monkeypatch, fails):
    store, write, gone = KeptStore(tmp_path), module.write_whole, []

    def slow(path: Path, content: bytes, private: bool = False) -> None:
        if path.suffix == ".npz" and not gone:
            gone.append(path)
            shutil.rmtree(path.parent)
            if fails:
                raise FileNotFoundError(path)
        write(path, content, private)

    monkeypatch.setattr(module, "write_whole", slow)
    store.delete("a")
    assert store.write(text(opened=time.time() + 1), WORDS) and gone
    assert [(held.tenant, held.texts) for held in store.summarize()] == [("a", 1)]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    store = KeptStore(tmp_path / "kept")
    (tmp_path / "kept").rmdir()
    with pytest.raises(FileNotFoundError):
        store.write(text(), WORDS)


def test_what_somebody_has_changed_is_listed_expired_and_deleted(tmp_path):
    now = [1000.0]
    store = KeptStore(tmp_path, seconds=100.0, clock=lambda: now[0])
    store.write(text(), WORDS)
    folder = store.folder_of("a")
    (folder / "tenant").write_bytes(b"\xff another one")
    for name in ("x.npz", "-.npz", "notes"):
        (folder / name).write_text("")
    (tmp_path / "another").mkdir()
    [held] = store.summarize()
    assert (held.tenant, held.texts) == ("?", 1)
    (folder / "tenant").unlink()
    now[0] = 1200.0
    store.expire()  # a folder that does not say whose it is
    assert store.summarize() == [] and not folder.exists()
    store.write(text(), WORDS)
    assert store.delete("a").tenant == "a"
    for mark in (b"nan", b"", b"\xff"):
        Path(f"{folder}.deleted").write_bytes(mark)
        assert not store.write(text(opened=5e9), WORDS), "whenever that was, it was deleted"


def test_a_deletion_that_fails_says_so(tmp_path, monkeypatch):
    store = KeptStore(tmp_path)
    store.write(text(), WORDS)
    monkeypatch.setattr(module.shutil, "rmtree", lambda folder, ignore_errors: None)
    with pytest.raises(UsageError, match="cannot be deleted"):
        store.delete("a")


def test_a_look_changes_no_folder(tmp_path):
    tmp_path.chmod(0o755)
    assert cli.main(["kept", "list", "--keep-text", str(tmp_path)]) == 0
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_the_commands(tmp_path, capsys):
    store = KeptStore(tmp_path)
    store.write(text("kitchen\x1b[2J"), WORDS)
    folder = ["--keep-text", str(tmp_path)]
    assert cli.main(["kept", "list", *folder]) == 0
    said = capsys.readouterr().out
    assert "1 texts" in said and str(store.folder_of("kitchen\x1b[2J")) in said
    assert "\x1b" not in said
    assert cli.main(["kept", "list", "--json", *folder]) == 0
    assert json.loads(capsys.readouterr().out)[0]["texts"] == 1
    assert cli.main(["kept", "delete", "kitchen\x1b[2J", *folder]) == 0
    assert "deleted 1 texts" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.npz"))
    assert cli.main(["kept", "delete", "nobody", *folder]) == NotFound.exit_code
    assert cli.main(["kept", "list", *folder]) == 0
    assert "no text is kept" in capsys.readouterr().out
    assert cli.main(["kept", "list", "--keep-text", str(tmp_path / "none")]) == NotFound.exit_code
    assert cli.main(["kept", "list"]) == UsageError.exit_code


def test_only_the_servers_user_reads_it(tmp_path):
    store = KeptStore(tmp_path / "kept")
    store.write(text(), WORDS)
    for path in [store.folder, *store.folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert "a" not in {path.name for path in store.folder.iterdir()}


# -- texts that somebody has changed ------------------------------------------------------------------------------


VOCABULARY, IDS = "words", 2048


@pytest.mark.parametrize("damage", ["cut", "roles", "ids", "nan", "sums", "no archive"])
def test_damaged_texts_are_refused_by_name(tmp_path, damage):
    """Training would fail in their midst, or learn nonsense."""
    store = KeptStore(tmp_path)
    top_ids = np.tile(np.arange(32, dtype=np.uint32), (2, 1))
    top = np.full((2, 32), np.nan if damage == "nan" else 0.0 if damage == "sums" else -4.0, np.float16)
    ids = (1, 2, 5_000_000 if damage == "ids" else 3)
    store.write(KeptText("a", 0.0, ids, 0 if damage == "roles" else 1, top_ids, top), VOCABULARY)
    [path] = store.folder_of("a").glob("*.npz")
    content = path.read_bytes()
    path.write_bytes(content[:-40] if damage == "cut" else b"no" if damage == "no archive" else content)
    with pytest.raises(UsageError, match=f"{path.name} is damaged, remove it"):
        read_kept(store.folder_of("a"), VOCABULARY, IDS)


def test_whole_texts_are_read(tmp_path):
    store = KeptStore(tmp_path)
    rows = np.tile(np.arange(32, dtype=np.uint32), (2, 1)), np.full((2, 32), -4.0, np.float16)
    store.write(KeptText("a", 0.0, (1, 2, 3), 1, *rows), VOCABULARY)
    [text] = read_kept(store.folder_of("a"), VOCABULARY, IDS)
    assert text.ids.tolist() == [1, 2, 3] and text.roles.tolist() == [0, 2, 2]
    with pytest.raises(VocabularyMismatch):
        read_kept(store.folder_of("a"), "of another target", IDS)
