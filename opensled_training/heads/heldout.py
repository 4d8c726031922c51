"""How many tokens a step writes with a head: along greedy texts of the target, walked as a server would.

From a row the head drafts greedily; what agrees with the text is accepted, and the next draft starts behind the token
that the target decides after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from opensled_training.heads.batches import Batch
from opensled_training.heads.pupil import Pupil, has_blank
from opensled_training.heads.windows import Window
from verify_server.heads.collapse import ROOT, Trie, best_chain, best_trie
from verify_server.heads.markov import greedy_chain

NODES = 16  # of a tree


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
    """`chain`: with the likeliest chain; of kind `ctc` also `tree`: with the best NODES nodes of a trie."""
    names = ("chain", "tree") if has_blank(pupil.head) else ("chain",)
    walks = {name: Walk() for name in names}
    for window in windows:
        rows = window.starts()
        batch = pupil.batch([window], [rows])
        accepted = zip(*(_of_tries if has_blank(pupil.head) else _of_chains)(pupil, batch))
        for walk, counts in zip(walks.values(), accepted):
            walk.along(rows, counts)
    return {name: round(walk.mean, 4) for name, walk in walks.items()}


def _of_chains(pupil: Pupil, batch: Batch) -> list[tuple[int]]:
    """Accepted tokens of each draft."""
    previous = torch.from_numpy(pupil.places)[batch.newest]
    chains = greedy_chain(pupil.logits(batch), previous, pupil.head.markov)
    agreed = (chains == batch.aims.tokens) & batch.aims.valid
    return [(count,) for count in agreed.cumprod(1).sum(1).tolist()]


def _of_tries(pupil: Pupil, batch: Batch) -> list[tuple[int, int]]:
    """Accepted tokens of each draft as a chain, and as a tree."""
    log_probs = pupil.log_probs(batch).numpy()
    found = []
    for frames, text in zip(log_probs, _texts(batch)):
        trie = best_trie(frames, frames.shape[-1] - 1, most=NODES)
        found.append((agreed(best_chain(trie), text), agreed(trie, text)))
    return found


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
