"""A bias between neighbouring tokens of a draft, of low rank: what one pass cannot know, because it drafts all at once.

Heads of the kind DSpark (https://github.com/vllm-project/speculators) have it: one row of a matrix is looked up, and
one small product is made. It is added to logits, so it works for every head whose outputs stand for tokens. Behind a
head with a blank an output stands for no place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

NOT_DRAFTED = -1  # in place of an id that is not in the draft vocabulary
SPREAD = 0.02  # of the weights that are not zero at first


class MarkovBias(nn.Module):
    """Over a draft vocabulary; ids are its own."""

    def __init__(self, vocabulary: int, rank: int) -> None:
        super().__init__()
        self.after = nn.Parameter(torch.randn(vocabulary, rank) * SPREAD)
        self.towards = nn.Parameter(torch.zeros(vocabulary, rank))

    def forward(self, previous: Tensor) -> Tensor:
        """[..., V] for the tokens before, [...]; after an id below 0, which cannot be drafted, there is no bias."""
        found = linear(embedding(previous.clamp_min(0), self.after), self.towards)
        return found.masked_fill(previous[..., None] < 0, 0)

    def among(self, previous: Sequence[int], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[W, C]: of the tokens before [W] for ids [C] alone."""
        rows = torch.tensor(previous)
        found = self.after[rows.clamp_min(0)] @ self.towards[torch.from_numpy(ids)].T
        return found.masked_fill(rows[:, None] < 0, 0).detach().numpy()


def markov_of(vocabulary: int, rank: int) -> MarkovBias | None:
    return MarkovBias(vocabulary, rank) if rank else None
