"""The labels of a work folder: shards of a few tasks each, and what they were made with.

A run that is stopped loses the tasks that it was at, and goes on behind its last shard.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from lab.training.pivots.questions import Question
from lab.training.pivots.walk import Walked
from opensled.core.errors import NotFound, UsageError

OPTIONS = "labelling.json"
FOLDS = 5  # parts of the tasks
ROW_NAMES = ("item", "place", "drafted", "own", "drafted_solved", "own_solved", "entropy", "prob", "pivot")


@dataclass(frozen=True)
class Labels:
    """n mismatches of several tasks."""

    states: np.ndarray  # float32 [n, size]
    entropies: np.ndarray  # float32 [n]
    probs: np.ndarray  # float32 [n]
    pivots: np.ndarray  # bool [n]
    folds: np.ndarray  # int [n]: of the tasks; one task, and what would give it away, is in one fold
    tasks: np.ndarray  # str [n]: kinds of tasks
    asked: int  # tasks, also those without a mismatch

    def __len__(self) -> int:
        return len(self.pivots)


def claim(folder: Path, labelling: Mapping[str, Any]) -> None:
    """Make the folder of labels that are made so. Raises UsageError where others are there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, wanted = folder / OPTIONS, dict(labelling)
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=2) + "\n")
        return
    there = json.loads(path.read_text())
    if other := [name for name, value in wanted.items() if there.get(name) != value]:
        raise UsageError(
            f"{folder} has labels that were made with another {' and '.join(other)}; remove it, or name another "
            "folder with --work"
        )


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def save_shard(walks: Sequence[tuple[Question, Walked]], path: Path) -> None:
    """Written beside and moved, so that a shard is never there in part."""
    rows = [(item, each) for item, (_, walked) in enumerate(walks) for each in walked.mismatches]
    table = [
        (item, each.place, *each.pair, each.drafted_solved, each.own_solved, *each.facts[1:], each.pivot)
        for item, each in rows
    ]
    columns = np.array(table, np.float64).reshape(len(rows), len(ROW_NAMES)).T
    arrays: dict[str, Any] = dict(zip(ROW_NAMES, columns))
    arrays["states"] = np.array([each.facts.state for _, each in rows], np.float32)
    arrays["keys"] = np.array([question.key for question, _ in walks])
    arrays["tasks"] = np.array([question.task for question, _ in walks])
    arrays["solved"] = np.array([walked.solved for _, walked in walks])
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)


def asked(folder: Path) -> int:
    """Tasks whose walks are in shards."""
    return sum(len(column) for column in _columns(folder, "keys"))


def counts(folder: Path) -> tuple[int, int]:
    """Mismatches, and the pivots among them."""
    found = list(_columns(folder, "pivot"))
    return sum(map(len, found)), int(sum(each.sum() for each in found))


def _columns(folder: Path, name: str) -> Iterator[np.ndarray]:
    """One array of each shard."""
    for path in shards(folder):
        with np.load(path) as file:
            yield file[name]


def read_labels(folder: Path) -> Labels:
    """All that is there. Raises NotFound where no mismatch is."""
    loaded = [_read(path) for path in shards(folder)]
    filled = [arrays for arrays in loaded if len(arrays["states"])]
    if not filled:
        raise NotFound(
            f"no mismatch was labelled in {folder}: the target solves too few of these tasks, or the draft model "
            "agrees with it; ask more with --items, or other ones with --tasks"
        )
    joined = {name: np.concatenate([arrays[name] for arrays in filled]) for name in filled[0]}
    return Labels(
        states=joined["states"],
        entropies=joined["entropy"].astype(np.float32),
        probs=joined["prob"].astype(np.float32),
        pivots=joined["pivot"] > 0,
        folds=joined["fold"],
        tasks=joined["task"],
        asked=asked(folder),
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    """The columns of the mismatches in one shard."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in (*ROW_NAMES, "states", "keys", "tasks")}
    items = arrays["item"].astype(int)
    folds = np.array([crc32(str(key).encode()) % FOLDS for key in arrays["keys"]], int)
    names = ("states", "entropy", "prob", "pivot")
    return {name: arrays[name] for name in names} | {"fold": folds[items], "task": arrays["tasks"][items]}
