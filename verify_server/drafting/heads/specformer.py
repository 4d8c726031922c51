"""SpecFormer (arXiv 2511.20340): one pass drafts `length` tokens from four hidden states, in no order.

As in the paper: grouped norms and a down-sampler, causal attention over the context, a feed-forward network of which
only the output depends on the place, and attention between the places of one draft. Ours: the token that was just
decided is a fifth input, without which a draft at a temperature cannot know what it follows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from verify_server.drafting.heads.base import Attention, Context, DraftHead, HeadShape
from verify_server.drafting.heads.layers import (
    KeysValues,
    Queries,
    RmsNorm,
    SwiGlu,
    among_themselves,
    rotate,
)
from verify_server.drafting.heads.markov import markov_of


class SpecFormerHead(DraftHead):
    """Output i of a draft stands for the token i + 2 after its row; the one between was decided by the target."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        size = shape.size
        self.tap_norms = nn.ModuleList(RmsNorm(size) for _ in shape.taps)
        self.down = nn.Linear(len(shape.taps) * size, size, bias=False)
        self.context_norm, self.context = RmsNorm(size), KeysValues(shape)
        self.queries = Queries(shape)
        self.token_norm, self.token = RmsNorm(size), nn.Linear(size, size, bias=False)
        self.places_norm, self.places = RmsNorm(size), nn.Linear(size, shape.length * size)
        self.mixed_norm, self.mixed, self.mixing = RmsNorm(size), KeysValues(shape), Queries(shape)
        self.inner_norm, self.inner = RmsNorm(size), SwiGlu(size, shape.inner)
        self.markov = markov_of(shape.vocabulary, shape.markov)

    def read(self, hidden: Tensor, positions: Tensor) -> Context:
        states = [norm(state) for norm, state in zip(self.tap_norms, hidden.unbind(1))]
        inputs = self.down(torch.cat(states, dim=-1))
        keys, values = self.context(self.context_norm(inputs))
        return Context(inputs, rotate(keys, positions, self.shape.rope_theta), values)

    def draft(self, inputs: Tensor, embedded: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        queries = rotate(self.queries(self.context_norm(inputs)), positions, self.shape.rope_theta)
        seen = attend(queries[:, None], None)[:, 0]
        states = inputs + self.queries.back(seen) + self.token(self.token_norm(embedded))
        places = self.places(self.places_norm(states)).unflatten(-1, (self.shape.length, self.shape.size))
        return self._mix(places)

    def _mix(self, places: Tensor) -> Tensor:
        """[B, length, d]: each place has seen all places of its draft."""
        normed = self.mixed_norm(places)
        places = places + self.mixing.back(among_themselves(self.mixing(normed), *self.mixed(normed)))
        found: Tensor = places + self.inner(self.inner_norm(places))
        return found
