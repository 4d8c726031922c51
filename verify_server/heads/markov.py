"""A bias between neighbouring tokens of a draft, of low rank: what one pass cannot know, because it drafts all at once.

Heads of the kind DSpark (https://github.com/vllm-project/speculators) have it: one row of a matrix is looked up, and
one small product is made. It is added to logits, so it works for every head whose outputs stand for tokens. Behind a
head with a blank an output stands for no place.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from verify_server.heads.base import HeadShape

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


def markov_of(shape: HeadShape) -> MarkovBias | None:
    return MarkovBias(shape.vocabulary, shape.markov) if shape.markov else None


def greedy_chain(logits: Tensor, previous: Tensor, bias: MarkovBias | None) -> Tensor:
    """The likeliest draft [B, length] of `logits` [B, length, V] after the tokens `previous` [B], one by one."""
    if bias is None:
        return logits.argmax(-1)
    chain = []
    for place in range(logits.shape[1]):
        previous = (logits[:, place] + bias(previous)).argmax(-1)
        chain.append(previous)
    return torch.stack(chain, dim=1)
