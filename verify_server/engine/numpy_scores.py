"""The numpy twin of verify_server/engine/torch_scores.py, for engines whose logits arrive as arrays, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from opensled.errors import NonFiniteLogits
from opensled.messages import SamplingParams, SparseDistribution, TokenLogprobs
from opensled.noise import gumbel
from opensled.sampling import most_likely, nucleus, softmax
from verify_server.engine.base import Masks, SampleRequest, Scores

# Ordering a whole vocabulary costs milliseconds a row; nearly every nucleus lies within this many best tokens.
NUCLEUS_FIRST = 1024


class NumpyScores(Scores):
    """`Scores` over float logits of shape [rows, vocabulary]."""

    def __init__(self, logits: np.ndarray) -> None:
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
        shaped = self._shaped(rows, params, masks)
        return [draw(row, params, key, position + index) for index, row in enumerate(shaped)]

    def probs_of(
        self, rows: Sequence[int], ids: Sequence[int], params: SamplingParams, masks: Masks = None
    ) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        shaped = self._shaped(rows, params, masks)
        return [float(target_probs(row, params)[id]) for row, id in zip(shaped, ids)]

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
        shaped = self._shaped([row], params, None if mask is None else [mask])
        rest = residual(target_probs(shaped[0], params), draft_probs)
        with np.errstate(divide="ignore"):  # log 0 = -inf: what cannot be drawn
            return int((np.log(rest) + gumbel(key, position, np.arange(len(rest)))).argmax())

    def entropy(self, rows: Sequence[int]) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        return [_entropy(softmax(logits)) for logits in self._raw(rows)]

    def top(self, rows: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        return [_entries(logits, most_likely(logits, count)) for logits in self._raw(rows)]

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        raw = self._raw(rows)
        columns = [[id, *(most_likely(row, count) if count else ())] for row, id in zip(raw, ids)]
        return [_entries(row, np.array(each)) for row, each in zip(raw, columns)]

    def _raw(self, rows: Sequence[int]) -> np.ndarray:
        self._refuse_bad(rows)
        return self.logits[list(rows)].astype(np.float64)

    def _shaped(self, rows: Sequence[int], params: SamplingParams, masks: Masks) -> np.ndarray:
        """float64 logits [rows, vocabulary] with biases added and forbidden ids at -inf."""
        logits = self._raw(rows)
        if params.logit_bias:
            ids, biases = zip(*params.logit_bias)
            logits[:, list(ids)] += np.array(biases)
        if masks is not None:
            logits[~_unpacked(masks, logits.shape[1])] = -np.inf
            if not np.isfinite(logits.max(axis=1)).all():
                raise NonFiniteLogits("the target gave nothing finite among the ids that may follow")
        return logits

    @cached_property
    def _greedy(self) -> list[int]:
        """The winner of every row, the lowest id of those that tie."""
        winners: list[int] = self.logits.argmax(axis=1).tolist()
        return winners

    @cached_property
    def _good(self) -> np.ndarray:
        """Which rows can decide anything, bool [rows]. The largest value shows it: NaN wins every maximum."""
        return np.isfinite(self.logits.max(axis=1))

    def _refuse_bad(self, rows: Sequence[int]) -> None:
        if not self._good[list(rows)].all():
            raise NonFiniteLogits(
                "the target gave NaN, infinity or nothing finite; retry or reopen the sequence"
            )


def draw(shaped: np.ndarray, params: SamplingParams, key: bytes, position: int) -> int:
    """The id at `position`, drawn with shared noise from float64 logits [vocabulary]."""
    if params.temperature == 0:
        return int(shaped.argmax())
    ids, scaled = _candidates(shaped, params)
    noisy = scaled + gumbel(key, position, ids)
    return int(ids[noisy == noisy.max()].min())


def target_probs(shaped: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The target's distribution, float64 [vocabulary], from logits of that shape."""
    probs = np.zeros_like(shaped)
    if params.temperature == 0:
        probs[shaped.argmax()] = 1.0
    else:
        ids, scaled = _candidates(shaped, params)
        probs[ids] = softmax(scaled)
    return probs


def residual(target: np.ndarray, draft_probs: SparseDistribution) -> np.ndarray:
    """max(0, target - draft) normalised, float64 [vocabulary]: the recovery distribution of speculative sampling."""
    draft = np.array(draft_probs.probs)
    rest = target.copy()
    rest[list(draft_probs.ids)] -= draft / draft.sum()
    np.maximum(rest, 0, out=rest)
    total = rest.sum()
    # Only rounding rejects a token when target and draft agree everywhere.
    return rest / total if total > 0 else target


def _candidates(shaped: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logits / temperature, both [n], of what top_k and top_p leave."""
    scaled = shaped / params.temperature
    ids = np.arange(len(scaled))
    if params.top_k:
        ids = most_likely(scaled, params.top_k)
    if params.top_p < 1:
        ids = ids[_nucleus(scaled[ids], params.top_p)]
    return ids, scaled[ids]


def _nucleus(scores: np.ndarray, mass: float) -> np.ndarray:
    """Columns of the smallest set of best scores whose probability reaches `mass`, best first."""
    probs = softmax(scores)
    for width in (NUCLEUS_FIRST, len(scores)):
        columns = most_likely(scores, width)
        kept = nucleus(probs[columns], mass)
        if kept < len(columns):
            break
    return columns[:kept]


def _unpacked(masks: Sequence[bytes], width: int) -> np.ndarray:
    """Bit masks as bool [rows, width]."""
    packed = np.stack([np.frombuffer(mask, np.uint8) for mask in masks])
    return np.unpackbits(packed, axis=1, count=width, bitorder="little").astype(bool)


def _entropy(probs: np.ndarray) -> float:
    """In nats; a probability of 0 adds nothing."""
    probs = probs[probs > 0]
    return -float((probs * np.log(probs)).sum())


def _entries(logits: np.ndarray, ids: np.ndarray) -> TokenLogprobs:
    """(id, log-probability) for each of `ids`, from the logits [vocabulary] of one row."""
    highest = logits.max()
    values = logits[ids] - highest - np.log(np.exp(logits - highest).sum())
    return tuple(zip(ids.tolist(), values.tolist()))
