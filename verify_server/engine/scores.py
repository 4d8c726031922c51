"""What a forward pass gives: the target's logits, and tokens drawn from them with shared noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from opensled.errors import NonFiniteLogits
from opensled.messages import SamplingParams
from verify_server.engine.noise import gumbel

# Sorting a vocabulary of 150k costs 15 ms a row on a CPU; nearly every nucleus lies within this many best tokens.
NUCLEUS_FIRST = 1024


class TorchScores:
    """`Scores` over logits of shape [rows, vocabulary]; the masks are those of opensled/sampling.py."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, rows: Sequence[int], params: SamplingParams, key: bytes, position: int) -> list[int]:
        """See `verify_server.engine.base.Scores`."""
        self._refuse_bad(rows)
        if params.temperature == 0:
            return [self._greedy[row] for row in rows]
        with torch.inference_mode():
            logits = self.logits[list(rows)].to(torch.float64)
            return _draw(logits / params.temperature, params, key, position).tolist()

    @cached_property
    def _greedy(self) -> list[int]:
        """The winner of every row: one reduction for the whole step, whoever asks first pays."""
        return _lowest_argmax(self.logits).tolist()

    @cached_property
    def _bad_rows(self) -> frozenset[int]:
        """Rows that decide nothing. The largest value shows them all: NaN wins every maximum."""
        good = self.logits.amax(dim=-1).isfinite().tolist()
        return frozenset(row for row, fine in enumerate(good) if not fine)

    def _refuse_bad(self, rows: Sequence[int]) -> None:
        for row in rows:
            if row in self._bad_rows:
                raise NonFiniteLogits(
                    "the target gave NaN, infinity or nothing finite; retry or reopen the sequence"
                )


def _draw(scaled: Tensor, params: SamplingParams, key: bytes, position: int) -> Tensor:
    """Ids [rows] drawn from float64 `scaled` = logits / temperature, [rows, vocabulary]."""
    ids = torch.arange(scaled.shape[1], device=scaled.device).expand_as(scaled)
    if params.top_k:
        ids, scaled = _top_k(ids, scaled, params.top_k)
    if params.top_p < 1:
        ids, scaled = _top_p(ids, scaled, params.top_p)
    return _lowest_argmax(scaled + gumbel(key, position, ids), ids)


def _top_k(ids: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of each row."""
    columns = _best(scores, count)
    return ids.gather(1, columns), scores.gather(1, columns)


def _top_p(ids: Tensor, scores: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """The best of each row, -inf beyond its nucleus: the smallest prefix whose probability reaches `mass`."""
    probs = scores.softmax(dim=-1)
    for width in (NUCLEUS_FIRST, scores.shape[1]):
        columns = _best(scores, width)
        sorted_probs = probs.gather(1, columns)
        before = sorted_probs.cumsum(dim=-1) - sorted_probs
        if (before[:, -1] >= mass).all():  # every nucleus ended before the last column
            break
    return ids.gather(1, columns), scores.gather(1, columns).masked_fill(before >= mass, -torch.inf)


def _best(scores: Tensor, count: int) -> Tensor:
    """Columns [rows, count] of each row's best, by score descending, then column ascending."""
    count = min(count, scores.shape[1])
    border = scores.topk(count, dim=-1).values[:, -1:]
    above, tied = scores > border, scores == border
    room = count - above.sum(dim=-1, keepdim=True)
    kept = above | (tied & (tied.cumsum(dim=-1) <= room))  # exactly `count` in every row
    columns = kept.nonzero()[:, 1].view(-1, count)
    order = scores.gather(1, columns).sort(dim=-1, descending=True, stable=True).indices
    return columns.gather(1, order)


def _lowest_argmax(scores: Tensor, ids: Tensor | None = None) -> Tensor:
    """The lowest id among the largest scores of each row; torch.argmax promises no order of ties."""
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    best = scores == scores.amax(dim=-1, keepdim=True)
    return ids.masked_fill(~best, torch.iinfo(torch.int64).max).amin(dim=-1)
