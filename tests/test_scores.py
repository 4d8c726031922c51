"""The target's tokens: torch and numpy keep to one contract, and to each other token for token."""

import numpy as np
import pytest
import torch

from opensled.core.messages import SamplingParams, SparseDistribution
from tests.scores_contract import KEY, ScoresContract, packed, sampling_cases
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.engine.torch.torch_scores import TorchScores


class TestTorchScores(ScoresContract):
    @staticmethod
    def scores(logits: np.ndarray) -> TorchScores:
        return TorchScores(torch.from_numpy(logits))


class Grouped(TorchScores):
    """As on a GPU: whole groups of rows at once."""

    def sample(self, requests):
        return self.sample_groups(requests)


class TestGroupedTorchScores(ScoresContract):
    @staticmethod
    def scores(logits: np.ndarray) -> TorchScores:
        return Grouped(torch.from_numpy(logits))


class TestNumpyScores(ScoresContract):
    @staticmethod
    def scores(logits: np.ndarray) -> NumpyScores:
        return NumpyScores(logits)


def both(logits: np.ndarray) -> tuple[TorchScores, NumpyScores]:
    return TorchScores(torch.from_numpy(logits)), NumpyScores(logits)


@pytest.mark.parametrize("vocabulary", [50, pytest.param(2048, marks=pytest.mark.long), 5000])
def test_torch_and_numpy_draw_the_same_tokens(vocabulary):
    chance = np.random.default_rng(vocabulary)
    logits = (chance.normal(size=(8, vocabulary)) * 3).astype(np.float32)
    masks = [packed(chance.choice(vocabulary, vocabulary // 3, replace=False), vocabulary) for _ in logits]
    one, other = both(logits)
    for number, params in enumerate(sampling_cases()):
        biased = SamplingParams(
            temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, logit_bias=((7, 4.0),)
        )
        for position in (number, 10_000 + number):
            for shape, mask in ((params, None), (params, masks), (biased, None)):
                drawn = one.sample_one(SampleRequest(range(8), shape, KEY, position, mask))
                assert other.sample_one(SampleRequest(range(8), shape, KEY, position, mask)) == drawn


def test_torch_and_numpy_recover_the_same_tokens():
    chance = np.random.default_rng(5)
    logits = (chance.normal(size=(4, 300)) * 2).astype(np.float32)
    one, other = both(logits)
    for position in range(200):
        ids = tuple(chance.choice(300, 20, replace=False).tolist())
        source = SparseDistribution(ids, tuple(chance.dirichlet(np.ones(20)).tolist()))
        params = SamplingParams(temperature=0.7, top_k=50 if position % 2 else 0, top_p=0.9)
        row = position % 4
        assert one.sample_residual(row, source, params, KEY, position) == other.sample_residual(
            row, source, params, KEY, position
        )
        probs = one.probs_of([row], ids[:1], params)
        assert other.probs_of([row], ids[:1], params) == pytest.approx(probs, abs=1e-13)


def test_samples_follow_the_target_distribution() -> None:
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    params = SamplingParams(temperature=0.7)
    drawn = TorchScores(logits).sample_one(SampleRequest(range(20_000), params, KEY, 0))
    frequency = np.bincount(drawn, minlength=20) / 20_000
    assert np.abs(frequency - (logits[0] / 0.7).softmax(-1).numpy()).max() < 0.012
