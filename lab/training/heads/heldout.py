"""How many tokens a step writes with a head: along greedy texts of the target, walked as a server would.

From a row the head drafts greedily; what agrees with the text is accepted, and the next draft starts behind the token
that the target decides after it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lab.training.heads.batches import Batch
from lab.training.heads.pupil import Pupil
from lab.training.heads.windows import Window
from verify_server.drafting.heads.collapse import ROOT, Trie


@dataclass
class Walk:
    """Steps of a server, and the tokens that they wrote."""

    steps: int = 0
    tokens: int = 0

    @property
    def mean(self) -> float:
        return self.tokens / max(1, self.steps)

    def along(self, rows: Iterable[int], accepted: Iterable[int]) -> None:
        """`accepted` of the drafts from all `rows` of a window, of which a walk visits some."""
        due = 0
        for row, count in zip(rows, accepted):
            if row >= due:
                self.steps, self.tokens = self.steps + 1, self.tokens + 1 + count
                due = row + 1 + count


@torch.inference_mode()
def tokens_per_step(pupil: Pupil, windows: Sequence[Window]) -> dict[str, float]:
    """By way of drafting: of `chain` with the likeliest chain, of `tree` with the best NODES nodes of a tree."""
    walks: dict[str, Walk] = {}
    for window in windows:
        rows = window.starts()
        batch = pupil.batch([window], [rows])
        for way, drafts in pupil.drafts(batch).items():
            walks.setdefault(way, Walk()).along(rows, map(agreed, drafts, _texts(batch)))
    return {way: round(walk.mean, 4) for way, walk in walks.items()}


def _texts(batch: Batch) -> list[list[int]]:
    """Behind each start what the target wrote; it ends where something else begins."""
    tokens: Tensor = batch.aims.tokens.masked_fill(~batch.aims.valid, ROOT - 1)
    return [list(map(int, text)) for text in np.asarray(tokens)]


def agreed(trie: Trie, text: Sequence[int]) -> int:
    """Tokens of `text` that are a path of the trie."""
    children = {(parent, id): node for node, (parent, id) in enumerate(zip(trie.parents, trie.ids))}
    node = ROOT
    for depth, id in enumerate(text):
        if (node := children.get((node, id), ROOT - 1)) < ROOT:
            return depth
    return len(text)
