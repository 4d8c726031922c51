"""CTC-drafter (arXiv 2412.00061), the paper's form: frames of which some are blank, all drafted in one pass.

A frame stands for no place in the text: of the frames' ids repeats become one and blanks are dropped
(collapse.py). What the paper leaves open is ours: learned frame embeddings, a blank of its own
beside the draft vocabulary, and the token that was just decided as an input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opensled.core.errors import UnsupportedModel
from verify_server.drafting.heads.base import Attention, Context, DraftHead, HeadShape
from verify_server.drafting.heads.layers import KeysValues, Queries, RmsNorm, SwiGlu, rotate
from verify_server.drafting.heads.markov import SPREAD


class CtcHead(DraftHead):
    """`shape.length` frames. Raises UnsupportedModel for a bias between neighbours."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.markov:
            raise UnsupportedModel("ctc frames have no neighbouring tokens, so markov must be 0")
        size = shape.size
        self.state_norm, self.token_norm = RmsNorm(size), RmsNorm(size)
        self.joined = nn.Linear(2 * size, size)
        self.frames = nn.Parameter(torch.randn(shape.length, size) * SPREAD)
        self.context_norm, self.context = RmsNorm(size), KeysValues(shape)
        self.frame_norm, self.own, self.queries = RmsNorm(size), KeysValues(shape), Queries(shape)
        self.inner_norm, self.inner = RmsNorm(size), SwiGlu(size, shape.inner)
        self.markov = None
        self.blank, self.blank_bias = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(1))

    def read(self, hidden: Tensor, positions: Tensor) -> Context:
        """`inputs` are the tapped states themselves, of one place."""
        states = hidden[:, 0]
        keys, values = self.context(self.context_norm(states))
        return Context(states, rotate(keys, positions, self.shape.rope_theta), values)

    def draft(self, inputs: Tensor, embedded: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        start = self.joined(torch.cat([self.state_norm(inputs), self.token_norm(embedded)], dim=-1))
        frames = start[:, None] + self.frames
        places = positions[:, None] + 1 + torch.arange(self.shape.length, device=positions.device)
        normed, theta = self.frame_norm(frames), self.shape.rope_theta
        keys, values = self.own(normed)
        seen = attend(rotate(self.queries(normed), places, theta), (rotate(keys, places, theta), values))
        frames = frames + self.queries.back(seen)
        found: Tensor = frames + self.inner(self.inner_norm(frames))
        return found

    def with_blank(self, logits: Tensor, normed: Tensor) -> Tensor:
        """[..., V + 1] of logits [..., V] and the normed hidden states [..., d] under them: the last id is blank."""
        blank = (normed * self.blank.to(normed)).sum(-1, keepdim=True) + self.blank_bias.to(normed)
        return torch.cat([logits, blank.to(logits)], dim=-1)
