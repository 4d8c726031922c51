"""The target's tokens against the design's definition, one id at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from opensled import noise
from opensled.errors import NonFiniteLogits
from opensled.messages import SamplingParams
from verify_server.engine.scores import TorchScores

GREEDY = SamplingParams(temperature=0)
KEY = noise.noise_key(7)
VOCABULARY = 97


def oracle(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    """The token by the words of the design, one id at a time."""
    order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
    if params.temperature == 0:
        return order[0]
    scaled = {v: float(logits[v]) / params.temperature for v in order}
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp([scaled[v] - scaled[order[0]] for v in order])
    kept, mass = [], 0.0
    for v, prob in zip(order, weights / weights.sum()):
        if kept and mass >= params.top_p:
            break
        kept.append(v)
        mass += prob
    noisy = {v: scaled[v] + noise.gumbel(KEY, position, np.array([v]))[0] for v in kept}
    return min(kept, key=lambda v: (-noisy[v], v))


def sampling_cases() -> Iterator[SamplingParams]:
    for temperature in (0.0, 0.3, 1.0, 2.5):
        for top_k in (0, 1, 3, 40, 1000):
            for top_p in (1.0, 0.91, 0.37, 1e-9):
                yield SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)


@pytest.mark.parametrize(
    "params", list(sampling_cases()), ids=lambda p: f"T{p.temperature}-k{p.top_k}-p{p.top_p}"
)
def test_sampling_equals_the_definition(params) -> None:
    chance = np.random.default_rng(0)
    smooth = chance.normal(size=(6, VOCABULARY)) * 2
    tied = chance.integers(-1, 2, size=(6, VOCABULARY)).astype(float)
    masked = np.where(chance.random((6, VOCABULARY)) < 0.7, -np.inf, smooth)
    logits = np.concatenate([smooth, tied, masked]).astype(np.float32)
    drawn = TorchScores(torch.from_numpy(logits)).sample(range(18), params, KEY, 11)
    assert drawn == [oracle(row, params, 11 + i) for i, row in enumerate(logits)]


@pytest.mark.parametrize("spread", [0.1, 6.0])
def test_a_nucleus_may_be_wider_than_the_first_guess(spread) -> None:
    logits = np.random.default_rng(1).normal(size=(4, 3000)) * spread
    params = SamplingParams(top_p=0.9)
    drawn = TorchScores(torch.from_numpy(logits)).sample(range(4), params, KEY, 0)
    assert drawn == [oracle(row, params, i) for i, row in enumerate(logits)]


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(3, 5000)
    logits[1, [17, 4000]] = 1.0
    logits[2, :] = -torch.inf
    logits[2, [4998, 4999]] = -3.0
    assert TorchScores(logits).sample([0, 1, 2], GREEDY, KEY, 0) == [0, 17, 4998]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_only_the_bad_row_is_refused(bad, params) -> None:
    logits = torch.randn(4, 30)
    logits[1, 3] = bad
    logits[2, :] = -torch.inf
    scores = TorchScores(logits)
    for row in (1, 2):
        with pytest.raises(NonFiniteLogits):
            scores.sample([row], params, KEY, 0)
    assert len(scores.sample([0], params, KEY, 0) + scores.sample([3], params, KEY, 0)) == 2


def test_samples_follow_the_target_distribution() -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    params = SamplingParams(temperature=0.7)
    drawn = TorchScores(logits).sample(range(20_000), params, KEY, 0)
    frequency = np.bincount(drawn, minlength=20) / 20_000
    assert np.abs(frequency - (logits[0] / 0.7).softmax(-1).numpy()).max() < 0.012
