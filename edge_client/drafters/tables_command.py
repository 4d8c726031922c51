"""`opensled draft-tables build`: a frozen draft table from texts like the expected answers."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from opensled.cli.config import option
from opensled.core.errors import NotFound, UnsupportedModel, UsageError, first_line
from opensled.core.files import decode_text, read_bytes, user_path
from opensled.core.vocabulary import fingerprint
from opensled.drafting import table_file
from opensled.drafting.table_file import (
    LONGEST_FOLLOWER,
    LONGEST_LEADER,
    MAX_FOLLOWERS,
    TableFile,
)
from opensled.drafting.tables import Rows, TableShape, as_rows
from opensled.models.pasted_names import model_name
from opensled.models.store import model_path
from opensled.text.tokenizer import panics_told, pieces_of, tokenizer_of

# Different windows kept at a time, about 2 GB; beyond it the rarest are forgotten
MAX_WINDOWS = 8_000_000


class TableBuilder:
    """Counts windows of tokens, document by document; no window spans two documents.

    The same documents in the same order give the same table.
    """

    def __init__(self, shape: TableShape, max_windows: int = MAX_WINDOWS) -> None:
        self.shape, self._most = shape, max_windows
        self.tokens = 0
        self._windows: Counter[tuple[int, ...]] = Counter()

    def read(self, ids: Sequence[int]) -> None:
        """Learn from the token ids of one document."""
        self.tokens += len(ids)
        span = self.shape.span
        self._windows.update(zip(*(ids[place:] for place in range(span))))
        if len(self._windows) > self._most:
            self._forget()

    def _forget(self) -> None:
        """Drop the rarer half, as in lossy counting (Manku and Motwani, VLDB 2002)."""
        kept = sorted(self._windows.items(), key=lambda item: (-item[1], item[0]))[: self._most // 2]
        self._windows = Counter(dict(kept))

    def rows(self) -> Rows:
        """The table: the most frequent leaders, each with its most frequent followers; ties go to lower ids."""
        followers: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for window, seen in self._windows.items():
            leader, follower = window[: self.shape.leader], window[self.shape.leader :]
            followers.setdefault(leader, []).append((-seen, follower))
        often = sorted((sum(seen for seen, _ in found), leader) for leader, found in followers.items())
        chosen = [leader for _, leader in often[: self.shape.leaders]]
        items = [(leader, self._best(followers[leader])) for leader in reversed(chosen)]
        return as_rows(items, self.shape)

    def _best(self, found: Iterable[tuple[int, tuple[int, ...]]]) -> tuple[tuple[int, ...], ...]:
        return tuple([follower for _, follower in sorted(found)[: self.shape.followers]])


REMEDY = (
    "name the tokenizer.json of the target, the folder that has it, or the one that this device keeps of its server: "
    "a .json file in ~/.cache/opensled"
)
CHUNK = 1 << 16  # characters that are tokenized at a time; lines stay whole
SHAPE = TableShape()


@dataclass(frozen=True)
class BuildConfig:
    """The texts of a table, its vocabulary and its size."""

    corpus: str = option("", "text files (UTF-8) or folders with text files, comma-separated", metavar="FILE")
    model: str = option(
        "tiny",
        "model with the vocabulary: a bundled name, a folder or a tokenizer.json",
        metavar="MODEL",
        read=model_name,
    )
    out: str = option("", "file for the table", metavar="FILE")
    leader_length: int = option(
        SHAPE.leader,
        "length of a leader (the tokens that are looked up)",
        low=1,
        high=LONGEST_LEADER,
        metavar="N",
    )
    follower_length: int = option(
        SHAPE.follower,
        "length of a follower (the tokens that come after a leader)",
        low=1,
        high=LONGEST_FOLLOWER,
        metavar="N",
    )
    followers: int = option(
        SHAPE.followers, "maximum number of followers of one leader", low=1, high=MAX_FOLLOWERS, metavar="N"
    )
    leaders: int = option(
        SHAPE.leaders,
        "maximum number of leaders; the most frequent ones are kept",
        low=1,
        high=10_000_000,
        metavar="N",
    )
    json: bool = option(False, "print JSON")

    @property
    def shape(self) -> TableShape:
        return TableShape(self.leader_length, self.follower_length, self.followers, self.leaders)


def build(config: BuildConfig) -> int:
    """Write the table and print its size."""
    if not config.corpus or not config.out:
        raise UsageError(
            "name the texts with --corpus and the table with --out (see: draft-tables build --help)"
        )
    tokenizer = read_tokenizer(config.model)
    builder = TableBuilder(config.shape)
    files = list(_files(config.corpus))
    for number, path in enumerate(files):
        _tell(f"read {number} of {len(files)} files, {builder.tokens:,} tokens")
        for chunk in _chunks(_text(path)):
            with panics_told():
                builder.read(tokenizer.encode(chunk, add_special_tokens=False).ids)
    _tell("")
    table = finish_table(builder, tokenizer, f"{len(files)} files, {builder.tokens} tokens")
    out = user_path(config.out)
    table_file.write(out, table)
    _report(out, table, builder.tokens, len(files), config.json)
    return 0


def _tell(progress: str) -> None:
    """The present state in place of the one before; only a terminal that can take it back gets it."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


def read_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a bundled model's name, a model's folder or a file; raises NotFound or UnsupportedModel."""
    path = model_path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise NotFound(f"{path} is missing; {REMEDY}", "model")
    if path.suffix == ".gguf":
        raise UsageError(f"--model {path}: a GGUF file has no tokenizer.json; {REMEDY}")
    try:
        return tokenizer_of(path.read_bytes())
    except Exception as error:  # tokenizers raises bare Exception
        raise UnsupportedModel(f"{path} is not a tokenizer.json ({first_line(error)}); {REMEDY}") from error


def finish_table(builder: TableBuilder, tokenizer: Tokenizer, source: str) -> TableFile:
    """The counted windows as a table; raises UsageError if there are none."""
    rows = builder.rows()
    if not len(rows.leaders):
        raise UsageError("these texts are too short for a table; name others with --corpus")
    pieces = pieces_of(tokenizer)
    return TableFile(rows, builder.shape, len(pieces), fingerprint(pieces), source)


def _files(corpus: str) -> Iterator[Path]:
    """Every file, also in folders, in the order of names, without hidden ones."""
    for name in corpus.split(","):
        path = user_path(name.strip())
        if not path.exists():
            raise NotFound(f"corpus {path} does not exist", "corpus")
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (item for item in found if item.is_file() and not item.name.startswith("."))


def _text(path: Path) -> str:
    try:
        return decode_text(read_bytes(path, "corpus"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"corpus {path} is not UTF-8 text (byte {error.start}); name text files only"
        ) from error


def _chunks(text: str) -> Iterator[str]:
    """Whole lines, about CHUNK characters at a time."""
    held: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        held.append(line)
        size += len(line)
        if size >= CHUNK:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _report(path: Path, table: TableFile, tokens: int, files: int, as_json: bool) -> None:
    size, leaders, followers = path.stat().st_size, len(table.rows.leaders), len(table.rows.followers)
    if as_json:
        figures = {"bytes": size, "tokens": tokens, "leaders": leaders, "followers": followers}
        print(json.dumps({"path": str(path), **figures}))
        return
    source = f"{tokens:,} tokens of {files} file{'s' * (files != 1)}"
    print(f"{path}: {leaders:,} leaders with {followers:,} followers from {source}, {size / 1e6:.2f} MB")
