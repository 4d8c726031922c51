"""What a forward pass gives: the target's logits, and tokens drawn from them with shared noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from opensled.errors import NonFiniteLogits
from opensled.messages import SamplingParams, SparseDistribution, TokenLogprobs
from verify_server.engine.base import Masks, SampleRequest, Scores
from verify_server.engine.torch_noise import gumbel

# Sorting a vocabulary of 150k costs 15 ms a row on a CPU; nearly every nucleus lies within this many best tokens.
NUCLEUS_FIRST = 1024


class TorchScores(Scores):
    """`Scores` over logits of shape [rows, vocabulary]; the masks are those of opensled/sampling.py."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int] | NonFiniteLogits]:
        """See `verify_server.engine.base.Scores`."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: SampleRequest) -> list[int] | NonFiniteLogits:
        try:
            return self._drawn(*request)
        except NonFiniteLogits as error:
            return error

    def _drawn(
        self, rows: Sequence[int], params: SamplingParams, key: bytes, position: int, masks: Masks
    ) -> list[int]:
        if params.temperature == 0 and masks is None and not params.logit_bias:
            self._refuse_bad(rows)
            return [self._greedy[row] for row in rows]
        with torch.inference_mode():
            return draw(self._shaped(rows, params, masks), params, key, position).tolist()

    def probs_of(
        self, rows: Sequence[int], ids: Sequence[int], params: SamplingParams, masks: Masks = None
    ) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            probs = target_probs(self._shaped(rows, params, masks), params)
            wanted = torch.tensor(ids, device=probs.device)[:, None]
            return probs.gather(1, wanted)[:, 0].tolist()

    def sample_residual(
        self,
        row: int,
        draft_probs: SparseDistribution,
        params: SamplingParams,
        key: bytes,
        position: int,
        mask: bytes | None = None,
    ) -> int:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            shaped = self._shaped([row], params, None if mask is None else [mask])
            rest = residual(target_probs(shaped, params)[0], draft_probs)
            ids = torch.arange(len(rest), device=rest.device)[None]
            return int(_lowest_argmax(rest.log()[None] + gumbel(key, position, ids)))

    def entropy(self, rows: Sequence[int]) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            return torch.special.entr(self._raw(rows).softmax(dim=-1)).sum(dim=-1).tolist()

    def top(self, rows: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            logits = self._raw(rows)
            return _entries(logits, _best(logits, count))

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            logits = self._raw(rows)
            chosen = torch.tensor(ids, device=logits.device, dtype=torch.int64)[:, None]
            return _entries(logits, torch.cat([chosen, _best(logits, count)], dim=1) if count else chosen)

    def _raw(self, rows: Sequence[int]) -> Tensor:
        self._refuse_bad(rows)
        return self.logits[list(rows)].to(torch.float64)

    def _shaped(self, rows: Sequence[int], params: SamplingParams, masks: Masks) -> Tensor:
        """float64 logits [rows, vocabulary] with biases added and forbidden ids at -inf."""
        logits = self._raw(rows)
        if params.logit_bias:
            ids, biases = zip(*params.logit_bias)
            logits[:, list(ids)] += torch.tensor(biases, dtype=torch.float64, device=logits.device)
        if masks is not None:
            logits.masked_fill_(~_unpacked(masks, logits), -torch.inf)
            if not logits.amax(dim=-1).isfinite().all():
                raise NonFiniteLogits("the target gave nothing finite among the ids that may follow")
        return logits

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


def draw(shaped: Tensor, params: SamplingParams, key: bytes, position: int) -> Tensor:
    """Ids [rows] drawn with shared noise from float64 logits [rows, vocabulary]; row i is for `position + i`."""
    if params.temperature == 0:
        return _lowest_argmax(shaped)
    ids, scaled = _candidates(shaped, params)
    return _lowest_argmax(scaled + gumbel(key, position, ids), ids)


def target_probs(shaped: Tensor, params: SamplingParams) -> Tensor:
    """The target's distribution, float64 [rows, vocabulary], from logits of that shape."""
    probs = torch.zeros_like(shaped)
    if params.temperature == 0:
        return probs.scatter_(1, _lowest_argmax(shaped)[:, None], 1.0)
    ids, scaled = _candidates(shaped, params)
    return probs.scatter_(1, ids, scaled.softmax(dim=-1))


def residual(target: Tensor, draft_probs: SparseDistribution) -> Tensor:
    """max(0, target - draft) normalised, float64 [vocabulary]: the recovery distribution of speculative sampling."""
    draft = torch.tensor(draft_probs.probs, dtype=target.dtype, device=target.device)
    rest = target.index_add(
        0, torch.tensor(draft_probs.ids, device=target.device), draft / draft.sum(), alpha=-1
    )
    rest.clamp_(min=0)
    total = rest.sum()
    # Only rounding rejects a token when target and draft agree everywhere.
    return rest / total if total > 0 else target


def _candidates(shaped: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids and logits / temperature, both [rows, n], of what top_k and top_p leave; -inf where they do not."""
    scaled = shaped / params.temperature
    ids = torch.arange(scaled.shape[1], device=scaled.device).expand_as(scaled)
    if params.top_k:
        ids, scaled = _top_k(ids, scaled, params.top_k)
    if params.top_p < 1:
        ids, scaled = _top_p(ids, scaled, params.top_p)
    return ids, scaled


def _entries(logits: Tensor, columns: Tensor) -> list[TokenLogprobs]:
    """(id, log-probability) for each of the `columns` [rows, n] of logits [rows, vocabulary]."""
    found = logits.log_softmax(dim=-1).gather(1, columns).tolist()
    return [tuple(zip(ids, numbers)) for ids, numbers in zip(columns.tolist(), found)]


def _unpacked(masks: Sequence[bytes], like: Tensor) -> Tensor:
    """Bit masks as bool [rows, vocabulary]."""
    packed = np.stack([np.frombuffer(mask, np.uint8) for mask in masks])
    bits = np.unpackbits(packed, axis=1, count=like.shape[1], bitorder="little")
    return torch.from_numpy(bits).to(like.device).bool()


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
