"""Pieces of texts with the target's hidden states, as they are kept in shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TOP = 32  # likeliest tokens that are kept of each distribution


@dataclass(frozen=True)
class Window:
    """`n` neighbouring rows of one text; the first one stands at position `first`."""

    first: int
    ids: np.ndarray  # int32 [n]
    own: np.ndarray  # bool [n]: the target wrote this token itself
    hidden: np.ndarray  # float16 [n, taps, d]
    top_ids: np.ndarray  # int32 [n, TOP]: likeliest tokens after a row, where the target wrote the next one
    top_log_probs: np.ndarray  # float16 [n, TOP]; -inf where it did not

    def __len__(self) -> int:
        return len(self.ids)

    def starts(self) -> np.ndarray:
        """Rows from which a head drafts: the token after them and the one after that are the target's own."""
        return np.flatnonzero(self.own[1:-1] & self.own[2:])


PACKED = ("ids", "own", "hidden", "top_ids", "top_log_probs")


@dataclass(frozen=True)
class Shard:
    taps: tuple[int, ...]  # which hidden states these are
    windows: list[Window]


def save_shard(shard: Shard, path: Path) -> None:
    """Written beside and moved, so that a shard is never there in part."""
    part = path.with_suffix(".part")
    windows = shard.windows
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(window, name) for window in windows]) for name in PACKED
    }
    arrays["taps"] = np.array(shard.taps, np.int32)
    arrays["firsts"] = np.array([window.first for window in windows], np.int32)
    arrays["sizes"] = np.array([len(window) for window in windows], np.int32)
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)


def read_shard(path: Path) -> Shard:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    ends = np.cumsum(arrays["sizes"])
    pieces = (np.split(arrays[name], ends[:-1]) for name in PACKED)
    windows = [Window(int(first), *piece) for first, *piece in zip(arrays["firsts"], *pieces)]
    return Shard(tuple(arrays["taps"].tolist()), windows)


def written(path: Path) -> int:
    """Tokens of a shard that the target wrote; reads no hidden states, nor does `rows`."""
    with np.load(path) as file:
        return int(file["own"].sum())


def rows(path: Path) -> int:
    with np.load(path) as file:
        return int(file["sizes"].sum())


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def own_ids(paths: Sequence[Path]) -> np.ndarray:
    """All tokens that the target wrote."""
    found = []
    for path in paths:
        with np.load(path) as file:
            found.append(file["ids"][file["own"]])
    return np.concatenate(found)
