"""`opensled draft-tables build`: the table it writes, what it shows meanwhile, and what it refuses."""

import json
import re
import sys

import pytest

from opensled.cli import main as cli
from opensled.core.errors import NotFound, UnsupportedModel, UsageError
from opensled.drafting import table_file
from opensled.drafting.tables import FrozenTable
from tests.tiny_drafts import tiny_info, tiny_tokenizer


def run(*words: str) -> int:
    return cli.run(["draft-tables", "build", *words])


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_builds_a_table_that_drafts_what_the_text_says(tmp_path, capsys):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 5)
    (tmp_path / "notes.txt").write_text("Turn on the light.\n")
    assert run("--corpus", "letters,notes.txt", "--out", "mine.table", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    table = table_file.read(tmp_path / "mine.table")
    table.require(tiny_info(), tmp_path / "mine.table")
    assert said["bytes"] == (tmp_path / "mine.table").stat().st_size
    assert said["leaders"] == len(table.rows.leaders) > 10
    tokenizer = tiny_tokenizer()
    fox = tokenizer.encode("The quick brown fox jumps over")
    (follower,) = FrozenTable(table.rows, 2048).followers(fox[-2:-1])[:1]
    assert follower[0] == fox[-1]


@pytest.mark.parametrize("lines", [4000, pytest.param(40_000, marks=pytest.mark.long)])
def test_the_same_texts_give_the_same_bytes(tmp_path, lines):
    (tmp_path / "a.txt").write_text("one two three four five six seven\n" * lines)
    for out in ("1.table", "2.table"):
        assert run("--corpus", "a.txt", "--out", out, "--leader-length", "2") == 0
    assert (tmp_path / "1.table").read_bytes() == (tmp_path / "2.table").read_bytes()


def test_progress_is_one_live_line_on_a_terminal_and_none_elsewhere(tmp_path, capsys, monkeypatch):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("one two three four five six seven\n" * 20)
    assert run("--corpus", "a.txt,b.txt", "--out", "x.table") == 0
    said = capsys.readouterr()
    assert said.err == "" and re.search(r"from [\d,]+ tokens of 2 files, ", said.out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert run("--corpus", "a.txt,b.txt", "--out", "x.table") == 0
    live = capsys.readouterr().err
    assert live.startswith("\r\x1b[Kread 0 of 2 files, 0 tokens\r\x1b[Kread 1 of 2 files, ")
    assert live.endswith("\r\x1b[K") and "\n" not in live
    monkeypatch.setenv("TERM", "dumb")
    assert run("--corpus", "a.txt,b.txt", "--out", "x.table") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("--out", "x.table"), UsageError, "--corpus"),
        (("--corpus", "a.txt"), UsageError, "--out"),
        (("--corpus", "none.txt", "--out", "x.table"), NotFound, r"none\.txt"),
        (("--corpus", "a.txt", "--out", "x.table", "--model", "none"), NotFound, "no model"),
        (("--corpus", "a.txt", "--out", "x.table", "--model", "a.txt"), UnsupportedModel, "tokenizer"),
        (("--corpus", "a.txt", "--out", "x.table", "--model", "."), NotFound, r"tokenizer\.json"),
        (
            ("--corpus", "a.txt", "--out", "x.table", "--model", "m.gguf"),
            UsageError,
            "GGUF.*; name the tokenizer",
        ),
        (("--corpus", "raw.bin", "--out", "x.table"), UsageError, r"raw\.bin is not UTF-8"),
        (("--corpus", "a.txt", "--out", "x.table"), UsageError, "too short"),
    ],
)
def test_says_what_is_wrong(tmp_path, words, error, said):
    for name in ("a.txt", "m.gguf"):
        (tmp_path / name).write_text("a")
    (tmp_path / "raw.bin").write_bytes(b"text \xff")
    with pytest.raises(error, match=said):
        run(*words)
    assert not (tmp_path / "x.table").exists()
