"""Batches of the target's own texts. A run goes on with the shards that were read least, while new ones arrive."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lab.training.distil.objective import Aims
from lab.training.distil.self_text import ANSWER, GIVEN

BATCH_TOKENS = 2560  # padded
TOGETHER = 6  # shards that are mixed


@dataclass(frozen=True)
class TextBatch:
    """Right-padded texts [rows, length], the positions whose next token the target wrote, and what it thought there."""

    ids: Tensor
    asked: Tensor  # bool [rows, length]
    aims: Aims
    answers: Tensor  # bool [N]: of the positions asked, those of the assistant's turns
    kinds: list[str]  # of the rows


@dataclass(frozen=True)
class ShardText:
    """One text of a shard: `roles` say who wrote a token; the TOP of every written one."""

    kind: str
    ids: np.ndarray
    roles: np.ndarray
    top_ids: np.ndarray
    top_log_probs: np.ndarray
    features: np.ndarray


def read_shard(path: Path) -> list[ShardText]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    ends = np.cumsum(arrays["lengths"])
    written = np.cumsum(arrays["roles"] != GIVEN)
    texts, begin, first = [], 0, 0
    for kind, end in zip(arrays["kinds"], ends):
        last = int(written[end - 1])
        known = (arrays[name][first:last] for name in ("top_ids", "top_log_probs", "features"))
        texts.append(ShardText(str(kind), arrays["ids"][begin:end], arrays["roles"][begin:end], *known))
        begin, first = int(end), last
    return texts


def batch_of(texts: Sequence[ShardText]) -> TextBatch:
    length = max(len(text.ids) for text in texts)
    ids = np.zeros((len(texts), length), np.int64)
    asked, answers = np.zeros((len(texts), length), bool), np.zeros((len(texts), length), bool)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = text.ids
        asked[row, : len(text.ids) - 1] = text.roles[1:] != GIVEN
        answers[row, : len(text.ids) - 1] = text.roles[1:] == ANSWER
    top_ids = np.concatenate([text.top_ids for text in texts]).astype(np.int64)
    log_probs, features = (
        torch.from_numpy(np.concatenate(arrays).astype(np.float32))
        for arrays in ([text.top_log_probs for text in texts], [text.features for text in texts])
    )
    return TextBatch(
        torch.from_numpy(ids),
        torch.from_numpy(asked),
        Aims(torch.from_numpy(top_ids), log_probs, features),
        torch.from_numpy(answers[asked]),
        [text.kind for text in texts],
    )


def batches_of(
    texts: Sequence[ShardText], rng: random.Random, most: int = BATCH_TOKENS
) -> list[list[ShardText]]:
    """Texts of like lengths together, `most` padded tokens of them, in a random order."""
    groups: list[list[ShardText]] = [[]]
    for text in sorted(texts, key=lambda text: (len(text.ids), rng.random())):
        if (len(groups[-1]) + 1) * len(text.ids) > most and groups[-1]:
            groups.append([])
        groups[-1].append(text)
    rng.shuffle(groups)
    return groups


def rounds_of_shards(
    folder: Path, reads: Counter[str], rng: random.Random, most: int = BATCH_TOKENS
) -> Iterator[list[list[ShardText]]]:
    """Endless groups of batches: each time of the shards in `folder` that `reads` counts least, then counted."""
    while True:
        names = [path.name for path in folder.glob("*.npz")]
        rng.shuffle(names)
        chosen = sorted(names, key=lambda name: reads[name])[:TOGETHER]
        yield batches_of([text for name in chosen for text in read_shard(folder / name)], rng, most)
        reads.update(chosen)
