"""OWL (arXiv 2510.07535): an LSTM drafts token by token, from one hidden state of the target, that of the newest row.

It attends to nothing, so a draft costs the same behind any text, and knows of the text only what is in that state. The
cell is that of the LSTM speculators which the paper's authors have published (ArcticTraining, Apache-2.0): gates over
sums of state and token, and norms with GELU where an LSTM has tanh. Ours: embedding and output layer are the target's,
frozen, where theirs are learned; the first state and the first cell are made of the target's state; the weights of all
steps are the same. The paper's token `[SPEC]` needs another target, and is left out.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from opensled.errors import UnsupportedModel
from verify_server.heads.base import Context, DraftHead, HeadShape
from verify_server.heads.layers import RmsNorm

KIND = "owl"  # in head files


class OwlState(NamedTuple):
    """Of B drafts, behind any number of their tokens; `width` is `HeadShape.inner`."""

    hidden: Tensor  # [B, width]
    cell: Tensor  # [B, width]


class OwlHead(DraftHead):
    """A step reads the token before the one that it drafts. Raises UnsupportedModel for a bias between neighbours."""

    attends: ClassVar[bool] = False
    markov: None

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape, self.markov = shape, None
        if shape.markov:
            raise UnsupportedModel(
                "a head that drafts token by token reads the last one: no bias between them"
            )
        size, width = shape.size, shape.inner
        self.row_norm, self.row = RmsNorm(size), nn.Linear(size, 2 * width)
        self.token_norm, self.token = RmsNorm(size), nn.Linear(size, 4 * width)
        self.again = nn.Linear(width, 4 * width, bias=False)
        self.cell_norm, self.hidden_norm = RmsNorm(width), RmsNorm(width)
        self.out = nn.Linear(width, size, bias=False)
        nn.init.ones_(self.token.bias[:width])  # what is known is kept, until training says otherwise

    def read(self, hidden: Tensor, positions: Tensor) -> Context:
        """`inputs` are the tapped states themselves, of one place."""
        states = hidden[:, 0]
        nothing = states[:, None, :0]
        return Context(states, nothing, nothing)

    def begin(self, inputs: Tensor) -> OwlState:
        """Before the first step, from what `read` made of the newest rows, [B, d]."""
        return OwlState(*self.row(self.row_norm(inputs)).chunk(2, dim=-1))

    def step(self, state: OwlState, embedded: Tensor) -> OwlState:
        """`embedded` [B, d]: the target's embedding of the newest token of each draft."""
        sums = self.again(state.hidden) + self.token(self.token_norm(embedded))
        kept, entered, shown, new = sums.chunk(4, dim=-1)
        cell = kept.sigmoid() * state.cell + entered.sigmoid() * gelu(self.cell_norm(new))
        return OwlState(shown.sigmoid() * gelu(self.hidden_norm(cell)), cell)

    def said(self, state: OwlState) -> Tensor:
        """[B, d] before the target's last norm and output layer, which say the next token."""
        found: Tensor = self.out(state.hidden)
        return found

    def along(self, inputs: Tensor, embedded: Tensor) -> Tensor:
        """[B, length, d], as `said`: drafts that follow the tokens [B, length, d], whatever the head would draft."""
        state, said = self.begin(inputs), []
        for token in embedded.unbind(1):
            state = self.step(state, token)
            said.append(self.said(state))
        return torch.stack(said, dim=1)
