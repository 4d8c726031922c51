"""The numpy twin of torch_scores.py, for engines whose logits arrive as arrays, without torch."""

from collections.abc import Sequence

import numpy as np

from opensled.core.errors import NonFiniteLogits
from opensled.core.messages import SamplingParams, SparseDistribution, TokenLogprobs
from opensled.core.noise import gumbel
from opensled.core.penalties import Emitted
from opensled.core.sampling import softmax
from verify_server.engine.base import EmittedRows, Masks, SampleRequest, Scores, each_emitted, each_mask
from verify_server.engine.row_sampling import Arithmetic, best, candidates, require_finite, sample, shape

ARITHMETIC = Arithmetic(softmax, gumbel)


class NumpyScores(Scores):
    """`Scores` over float logits of shape [rows, vocabulary]."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits

    @property
    def vocab_size(self) -> int:
        """See `verify_server.engine.base.Scores`."""
        return int(self.logits.shape[-1])

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int] | NonFiniteLogits]:
        """See `verify_server.engine.base.Scores`."""
        return sample(requests, self.logits.__getitem__, ARITHMETIC)

    def probs_of(
        self,
        rows: Sequence[int],
        ids: Sequence[int],
        params: SamplingParams,
        masks: Masks = None,
        emitted: EmittedRows = None,
    ) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        each = zip(rows, each_mask(masks, len(rows)), each_emitted(emitted, len(rows)))
        found = [self._target_probs(row, params, mask, before) for row, mask, before in each]
        return [float(probs[id]) for probs, id in zip(found, ids)]

    def sample_residual(
        self,
        row: int,
        draft_probs: SparseDistribution,
        params: SamplingParams,
        key: bytes,
        position: int,
        mask: bytes | None = None,
        emitted: Emitted | None = None,
    ) -> int:
        """See `verify_server.engine.base.Scores`."""
        rest = residual(self._target_probs(row, params, mask, emitted), draft_probs)
        with np.errstate(divide="ignore"):  # log 0 = -inf: what cannot be drawn
            return int((np.log(rest) + gumbel(key, position, np.arange(len(rest)))).argmax())

    def entropy(self, rows: Sequence[int]) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        return [_entropy(softmax(logits)) for logits in self._raw(rows)]

    def top(self, rows: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        return [_entries(logits, best(logits, count)) for logits in self._raw(rows)]

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        raw = self._raw(rows)
        columns = [[id, *(best(row, count) if count else ())] for row, id in zip(raw, ids)]
        return [_entries(row, np.array(each)) for row, each in zip(raw, columns)]

    def ranks(self, rows: Sequence[int], ids: Sequence[int]) -> list[int]:
        """See `verify_server.engine.base.Scores`."""
        for row in rows:
            require_finite(self.logits[row])
        return [int((self.logits[row] >= self.logits[row][id]).sum()) for row, id in zip(rows, ids)]

    def _raw(self, rows: Sequence[int]) -> list[np.ndarray]:
        """float64 logits [vocabulary] of each row."""
        for row in rows:
            require_finite(self.logits[row])
        return [self.logits[row].astype(np.float64) for row in rows]

    def _target_probs(
        self, row: int, params: SamplingParams, mask: bytes | None, emitted: Emitted | None
    ) -> np.ndarray:
        require_finite(self.logits[row])
        return target_probs(shape(self.logits[row], params, mask, emitted), params)


def target_probs(shaped: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The target's distribution, float64 [vocabulary], from logits of that shape."""
    probs = np.zeros(len(shaped))
    if params.temperature == 0:
        probs[shaped.argmax()] = 1.0
    else:
        ids, scaled = candidates(shaped, params, softmax)
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


def _entropy(probs: np.ndarray) -> float:
    """In nats; a probability of 0 adds nothing."""
    probs = probs[probs > 0]
    return -float((probs * np.log(probs)).sum())


def _entries(logits: np.ndarray, ids: np.ndarray) -> TokenLogprobs:
    """(id, log-probability) for each of `ids`, from the logits [vocabulary] of one row."""
    highest = logits.max()
    values = logits[ids] - highest - np.log(np.exp(logits - highest).sum())
    return tuple(zip(ids.tolist(), values.tolist()))
