"""Draft tables as files: a line that says the version, a line of JSON, then arrays of token ids, little-endian.

    OpenSLED draft table 1
    {"bytes": 1234, "fingerprint": "...", ...}
    leaders [N, leader length], counts of followers [N] (one byte each), followers [sum of the counts, follower length]

Ids take two bytes in vocabularies of up to 65,536 tokens, else four. The fingerprint is that of the vocabulary: a table
holds token ids, which mean other text in another vocabulary.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opensled.core.errors import UnsupportedModel, VocabularyMismatch
from opensled.core.files import read_bytes, write_whole
from opensled.core.messages import ModelInfo
from opensled.drafting.tables import Rows, TableShape

FORMAT = b"OpenSLED draft table "
VERSION = b"1"
LONGEST_LEADER, LONGEST_FOLLOWER = 3, 16  # tokens; three ids of any vocabulary fit into 63 bits
MAX_FOLLOWERS = 255  # of a leader: the number takes one byte


@dataclass(frozen=True)
class TableFile:
    """A table, the vocabulary of its token ids, and where it comes from."""

    rows: Rows
    shape: TableShape
    vocab_size: int
    fingerprint: str  # of the vocabulary
    source: str = ""  # in words, for people

    def require(self, target: ModelInfo, path: Path) -> None:
        """Raises VocabularyMismatch unless the target means the same text by every id."""
        if (self.vocab_size, self.fingerprint) == (target.vocab_size, target.fingerprint):
            return
        raise VocabularyMismatch(
            f"draft table {path} is for another vocabulary ({self.vocab_size} tokens) than that of the target "
            f"{target.model_id!r} ({target.vocab_size} tokens); build one: opensled draft-tables build --help"
        )


def write(path: Path, table: TableFile, private: bool = False) -> None:
    """Write a file as a whole; `private`: only this user may read it."""
    write_whole(path, encode(table), private)


def encode(table: TableFile) -> bytes:
    """The bytes of a file; the same table gives the same bytes."""
    ids = _id_type(table.vocab_size)
    rows = table.rows
    parts = (rows.leaders.astype(ids), rows.counts.astype(np.uint8), rows.followers.astype(ids))
    payload = b"".join(part.tobytes() for part in parts)
    header = {
        "bytes": len(payload),
        "fingerprint": table.fingerprint,
        "follower_length": table.shape.follower,
        "leader_length": table.shape.leader,
        "leaders": len(rows.leaders),
        "sha256": hashlib.sha256(payload).hexdigest(),
        "source": table.source,
        "vocab_size": table.vocab_size,
    }
    return b"".join((FORMAT, VERSION, b"\n", json.dumps(header, sort_keys=True).encode(), b"\n", payload))


def read(path: Path) -> TableFile:
    """Raises NotFound or UsageError for a file that cannot be read, UnsupportedModel for one that is no whole table."""
    content = read_bytes(path, "draft table")
    first, _, rest = content.partition(b"\n")
    if not first.startswith(FORMAT):
        raise UnsupportedModel(f"{path} is not a draft table; make one: opensled draft-tables build --help")
    if first != FORMAT + VERSION:
        raise UnsupportedModel(
            f"draft table {path} has a format that this version does not know; build it again: "
            "opensled draft-tables build --help"
        )
    header, _, payload = rest.partition(b"\n")
    try:
        return _decode(json.loads(header), payload)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UnsupportedModel(
            f"draft table {path} is damaged ({error}); build it again: opensled draft-tables build --help"
        ) from error


def _decode(header: dict[str, Any], payload: bytes) -> TableFile:
    """Raises ValueError, KeyError or TypeError where header and payload make no table."""
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise ValueError(f"{len(payload)} bytes with another checksum than the header's {header['bytes']}")
    leader, follower = header["leader_length"], header["follower_length"]
    count, size = header["leaders"], header["vocab_size"]
    _require(0 < leader <= LONGEST_LEADER and 0 < follower <= LONGEST_FOLLOWER and count >= 0, "sizes")
    ids = _id_type(size)
    begin = count * leader * ids.itemsize
    _require(len(payload) >= begin + count, "too short")
    leaders = np.frombuffer(payload, ids, count * leader).reshape(count, leader)
    counts = np.frombuffer(payload, np.uint8, count, begin)
    followers = np.frombuffer(payload, ids, offset=begin + count).reshape(-1, follower)
    _require(int(counts.sum(dtype=np.int64)) == len(followers), "counts")
    _require(not len(followers) or max(leaders.max(), followers.max()) < size, "ids beyond the vocabulary")
    most = int(counts.max(initial=1))
    return TableFile(
        Rows(leaders, counts, followers),
        TableShape(leader, follower, most, max(count, 1)),
        size,
        header["fingerprint"],
        header["source"],
    )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _id_type(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
