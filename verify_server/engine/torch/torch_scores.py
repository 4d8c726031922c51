"""What a forward pass gives: the target's logits, and tokens drawn from them with shared noise."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from opensled.core.errors import NonFiniteLogits
from opensled.core.messages import SamplingParams, SparseDistribution, TokenLogprobs
from opensled.core.noise import row_seed
from opensled.core.penalties import Emitted
from verify_server.engine import row_sampling
from verify_server.engine.base import EmittedRows, Masks, SampleRequest, Scores, each_emitted, each_mask
from verify_server.engine.row_sampling import BAD_MASK, BAD_ROW
from verify_server.engine.torch.torch_noise import gumbel, wrap_int64
from verify_server.engine.torch.torch_sampling import (
    NOTHING,
    best,
    draw_all,
    rows_of,
    shape,
    target_probs,
)


class TorchScores(Scores):
    """`Scores` over logits of shape [rows, vocabulary]."""

    def __init__(self, logits: Tensor, states: Tensor | None = None) -> None:
        """`states`: [rows, size] of the layer that the engine keeps."""
        self.logits, self._states = logits, states

    @property
    def vocab_size(self) -> int:
        """See `verify_server.engine.base.Scores`."""
        return int(self.logits.shape[-1])

    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int] | NonFiniteLogits]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            if self.logits.device.type == "cpu":
                return row_sampling.sample(requests, self._row, ARITHMETIC)
            return self.sample_groups(requests)

    def sample_groups(self, requests: Sequence[SampleRequest]) -> list[list[int] | NonFiniteLogits]:
        """See `sample`: by few operations, each on the rows of many requests."""
        drawn = [request for request in requests if not (self._is_bad(request) or request.is_plain)]
        tokens = iter(draw_all(self.logits, [row for request in drawn for row in rows_of(request)]))
        return [self._answer(request, tokens) for request in requests]

    def _answer(self, request: SampleRequest, tokens: Iterator[int]) -> list[int] | NonFiniteLogits:
        if self._is_bad(request):
            return NonFiniteLogits(BAD_ROW)
        if request.is_plain:
            return [self._greedy[row] for row in request.rows]
        found = list(islice(tokens, len(request.rows)))
        return NonFiniteLogits(BAD_MASK) if NOTHING in found else found

    def probs_of(
        self,
        rows: Sequence[int],
        ids: Sequence[int],
        params: SamplingParams,
        masks: Masks = None,
        emitted: EmittedRows = None,
    ) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            probs = target_probs(self._shape(rows, params, masks, emitted), params)
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
        emitted: Emitted | None = None,
    ) -> int:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            masks = None if mask is None else [mask]
            shaped = self._shape([row], params, masks, None if emitted is None else [emitted])
            rest = residual(target_probs(shaped, params)[0], draft_probs)
            ids = torch.arange(len(rest), device=rest.device)[None]
            seeds = torch.tensor([wrap_int64(row_seed(key, position))], device=rest.device)
            return int((rest.log()[None] + gumbel(seeds, ids)).argmax())

    def entropy(self, rows: Sequence[int]) -> list[float]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            return torch.special.entr(self._raw(rows).softmax(dim=-1)).sum(dim=-1).tolist()

    def hidden_states(self, rows: Sequence[int]) -> np.ndarray:
        """See `verify_server.engine.base.Scores`."""
        if self._states is None:
            return super().hidden_states(rows)
        return self._states[list(rows)].float().cpu().numpy()

    def top(self, rows: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            logits = self._raw(rows)
            return _entries(logits, best(logits, count))

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            logits = self._raw(rows)
            chosen = torch.tensor(ids, device=logits.device, dtype=torch.int64)[:, None]
            return _entries(logits, torch.cat([chosen, best(logits, count)], dim=1) if count else chosen)

    def ranks(self, rows: Sequence[int], ids: Sequence[int]) -> list[int]:
        """See `verify_server.engine.base.Scores`."""
        with torch.inference_mode():
            if not self._bad_rows.isdisjoint(rows):
                raise NonFiniteLogits(BAD_ROW)
            logits = self.logits[torch.tensor(rows, device=self.logits.device, dtype=torch.int64)]
            chosen = torch.tensor(ids, device=logits.device, dtype=torch.int64)[:, None]
            return (logits >= logits.gather(1, chosen)).sum(dim=-1).tolist()

    def _raw(self, rows: Sequence[int]) -> Tensor:
        """float64 logits [rows, vocabulary]."""
        return self._shape(rows, SamplingParams(), None)

    def _shape(
        self, rows: Sequence[int], params: SamplingParams, masks: Masks, emitted: EmittedRows = None
    ) -> Tensor:
        if not self._bad_rows.isdisjoint(rows):
            raise NonFiniteLogits(BAD_ROW)
        count = len(rows)
        each = each_mask(masks, count), each_emitted(emitted, count)
        shaped = shape(self.logits, rows, [params] * count, *each)
        if masks is not None and shaped.amax(dim=-1).isneginf().any():
            raise NonFiniteLogits(BAD_MASK)
        return shaped

    def _row(self, number: int) -> np.ndarray:
        """float32 or float64 logits [vocabulary] of a row on a CPU."""
        row = self.logits[number]
        return (row if row.dtype in (torch.float32, torch.float64) else row.float()).numpy()

    def _is_bad(self, request: SampleRequest) -> bool:
        return not self._bad_rows.isdisjoint(request.rows)

    @cached_property
    def _greedy(self) -> list[int]:
        """The likeliest id of every row."""
        return self._largest.indices.tolist()

    @cached_property
    def _bad_rows(self) -> frozenset[int]:
        """Rows that decide nothing. The largest value shows them all: NaN wins every maximum."""
        good = self._largest.values.isfinite().tolist()
        return frozenset(row for row, fine in enumerate(good) if not fine)

    @cached_property
    def _largest(self) -> torch.return_types.max:
        """Of every row, in one reduction for the whole step; torch.max gives the first of equal values."""
        return self.logits.max(dim=-1)


def _softmax(scores: np.ndarray) -> np.ndarray:
    return torch.from_numpy(scores)[None].softmax(dim=-1)[0].numpy()


def _gumbel(key: bytes, position: int, ids: np.ndarray) -> np.ndarray:
    seeds = torch.tensor([wrap_int64(row_seed(key, position))])
    return gumbel(seeds, torch.from_numpy(ids)[None])[0].numpy()


ARITHMETIC = row_sampling.Arithmetic(_softmax, _gumbel)  # torch's own, also where the rest is numpy


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


def _entries(logits: Tensor, columns: Tensor) -> list[TokenLogprobs]:
    """(id, log-probability) for each of the `columns` [rows, n] of logits [rows, vocabulary]."""
    found = logits.log_softmax(dim=-1).gather(1, columns).tolist()
    return [tuple(zip(ids, numbers)) for ids, numbers in zip(columns.tolist(), found)]
