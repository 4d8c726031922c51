"""Whether a GPU draws the ids that it must: the same for a row in any company, and those of the processor.

The rows are drawn by groups, as on a GPU, also in the miniature on the processor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from opensled.core import noise
from opensled.core.messages import SamplingParams
from verify_server.engine.base import SampleRequest
from verify_server.engine.torch import torch_noise
from verify_server.engine.torch.torch_scores import TorchScores

# What users ask for, and a nucleus that is wider than the best 1,024 ids of a flat row.
PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.0, top_k=40),
    SamplingParams(temperature=0.7, min_p=0.05),
    SamplingParams(temperature=0.9, top_k=50, top_p=0.95, min_p=0.02),
    SamplingParams(temperature=1.0, top_p=0.99),
)
NEAR = 1e-9  # of a score, or of a probability where a nucleus ends: a near tie
BORDERS = (1000, 3000)  # ids of equal probability; the second are more than the best 1,024
SPREAD = 2.0  # of the logits
LIKELY = 40  # ids that stand out in a row as models give it

Ids = list[int]


def same_noise(
    device: torch.device, vocabulary: int, positions: Sequence[int] = (0, 77, 2**31)
) -> dict[str, Any]:
    """The integer hash bit for bit, and how far the noise made of it lies from numpy's."""
    ids, key = np.arange(vocabulary), noise.noise_key(5)
    seeds = torch.tensor(
        [torch_noise.wrap_int64(noise.row_seed(key, each)) for each in positions], device=device
    )
    columns = torch.from_numpy(ids).to(device).expand(len(positions), -1)
    hashed = torch_noise.hash_bits(seeds, columns).cpu().numpy().view(np.uint64)
    given = torch_noise.gumbel(seeds, columns).cpu().numpy()
    differing = sum(int((row != noise.hash_bits(key, at, ids)).sum()) for row, at in zip(hashed, positions))
    error = max(float(np.abs(row - noise.gumbel(key, at, ids)).max()) for row, at in zip(given, positions))
    return {
        "holds": not differing and error < NEAR,
        "elements": hashed.size,
        "differing": differing,
        "largest_error": error,
    }


def same_ids(device: torch.device, vocabulary: int, rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """Rows of all kinds in one step, each by itself, and all of them on the processor."""
    logits = _logits(rows, vocabulary).to(dtype)
    requests = [
        SampleRequest((row,), PARAMS[row % len(PARAMS)], noise.noise_key(row), 100 + 7 * row)
        for row in range(rows)
    ]
    together, alone = _both(logits.to(device), requests)
    expected = _flat(TorchScores(logits).sample(requests))
    apart = [row for row in range(rows) if together[row] != expected[row]]
    ties = sum(_is_near_tie(logits, requests[row], together[row], expected[row]) for row in apart)
    differing = sum(mine != theirs for mine, theirs in zip(together, alone))
    return {
        "holds": not differing and ties == len(apart),
        "rows": rows,
        "differ_alone": differing,
        "near_ties": ties,
        "wrong": len(apart) - ties,
    }


def same_at_borders(device: torch.device, vocabulary: int) -> dict[str, Any]:
    """Rows whose nucleus ends within the last bit of a sum, and whose token is the one at that end."""
    requests: list[SampleRequest] = []
    rows: list[torch.Tensor] = []
    for count in BORDERS:
        for share in (0.3, 0.5, 0.9):
            end = round(share * count)
            params, key = SamplingParams(temperature=1.0, top_p=end / count), noise.noise_key(end)
            requests.append(SampleRequest((len(rows),), params, key, _position(key, end)))
            rows.append(torch.where(torch.arange(vocabulary) < count, 2.0, -torch.inf))
    # Flat rows beside them widen the nucleus of the whole group.
    requests.append(SampleRequest((len(rows),), SamplingParams(top_p=0.99), bytes(16), 3))
    rows.append(torch.zeros(vocabulary))
    together, alone = _both(torch.stack(rows).to(device), requests)
    differing = sum(mine != theirs for mine, theirs in zip(together, alone))
    return {"holds": not differing, "rows": len(rows), "differ_alone": differing}


def _position(key: bytes, end: int) -> int:
    """The first one at which the id at place `end` wins against those before it."""
    ids = np.arange(end + 1)
    return next(at for at in range(100 * end) if noise.gumbel(key, at, ids).argmax() == end)


def _logits(rows: int, vocabulary: int) -> torch.Tensor:
    """float32 [rows, vocabulary]: as models give them, a few likely ids over a long tail, and every third one flat."""
    chance = np.random.default_rng(vocabulary)
    logits = chance.normal(size=(rows, vocabulary)) * SPREAD
    likely = np.arange(rows) % 3 != 0
    logits[likely, :LIKELY] += np.linspace(24, 8, LIKELY)
    return torch.from_numpy(chance.permuted(logits, axis=1).astype(np.float32))


def _both(logits: torch.Tensor, requests: Sequence[SampleRequest]) -> tuple[Ids, Ids]:
    """The ids of all requests in one step, and of each in a step of its own."""
    with torch.inference_mode():
        together = _flat(TorchScores(logits).sample_groups(requests))
        alone = [
            TorchScores(logits[request.rows[0]][None]).sample_groups([request._replace(rows=(0,))])
            for request in requests
        ]
    return together, [id for answers in alone for id in _flat(answers)]


def _flat(answers: Sequence[list[int] | Exception]) -> Ids:
    found: Ids = []
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        found += answer
    return found


def _is_near_tie(logits: torch.Tensor, request: SampleRequest, given: int, expected: int) -> bool:
    """Whether both ids score alike, or the given one is the processor's with a nucleus a hair wider or narrower.

    Without noise nothing is rounded.
    """
    if request.params.temperature == 0:
        return False
    if abs(_score(logits, request, given) - _score(logits, request, expected)) < NEAR:
        return True
    nudged = [request._replace(params=params) for params in _nudged(request.params)]
    return any(_flat(TorchScores(logits).sample([each])) == [given] for each in nudged)


def _score(logits: torch.Tensor, request: SampleRequest, id: int) -> float:
    scaled = float(logits[request.rows[0], id]) / request.params.temperature
    return scaled + float(noise.gumbel(request.key, request.position, np.array([id]))[0])


def _nudged(params: SamplingParams) -> Iterator[SamplingParams]:
    for factor in (1 - NEAR, 1 + NEAR):
        yield replace(params, top_p=min(1.0, params.top_p * factor), min_p=params.min_p * factor)
