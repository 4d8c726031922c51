"""The target's tokens: torch and numpy keep to one contract, and bit for bit to tests/sampling_reference.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from opensled.core.messages import SamplingParams, SparseDistribution
from opensled.core.noise import gumbel, noise_key
from tests.sampling_reference import numpy_tokens, torch_tokens
from tests.scores_contract import KEY, Grouped, ScoresContract, packed, sampling_cases
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.engine.row_sampling import BLOCK, contenders
from verify_server.engine.torch.torch_scores import TorchScores


class TestTorchScores(ScoresContract):
    @staticmethod
    def scores(logits: np.ndarray) -> TorchScores:
        return TorchScores(torch.from_numpy(logits))


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


def test_samples_follow_the_target_distribution():
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0)).expand(20_000, -1)
    params = SamplingParams(temperature=0.7)
    drawn = TorchScores(logits).sample_one(SampleRequest(range(20_000), params, KEY, 0))
    frequency = np.bincount(drawn, minlength=20) / 20_000
    assert np.abs(frequency - (logits[0] / 0.7).softmax(-1).numpy()).max() < 0.012


# -- bit for bit ------------------------------------------------------------------------------------------------


VOCABULARIES = (1, 2, 63, 64, 1000, 5000, BLOCK, BLOCK + 1, 49_152)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 1e-6, 0.01, 0.3, 0.8, 1.0, 5.0)) | st.floats(0.01, 5),
    top_k=st.sampled_from((0, 0, 1, 2, 50, 1500)),
    top_p=st.sampled_from((1.0, 1.0, 0.9, 0.5, 1e-9)) | st.floats(0.01, 1),
)
SPREADS = st.sampled_from(("flat", "normal", "wide", "peaked", "tied", "equal", "holes", "huge"))


def requests_of(sessions: int, rows: int, params: SamplingParams) -> list[SampleRequest]:
    """What the sessions of a step ask for, each with noise and a position of its own."""
    return [
        SampleRequest(range(number * rows, (number + 1) * rows), params, noise_key(number), 100 + 7 * number)
        for number in range(sessions)
    ]


class Launches(TorchDispatchMode):
    """Counts tensor operations that compute or copy."""

    VIEWS = (
        *("view", "expand", "select", "slice", "unsqueeze"),
        *("squeeze", "detach", "lift_fresh", "alias", "empty"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        self.count += not name.startswith(self.VIEWS)
        return func(*args, **(kwargs or {}))


def launches(run: Callable[[], Any]) -> int:
    """Operations of one run."""
    with Launches() as counted:
        run()
    return counted.count


def logits_of(kind: str, rows: int, vocabulary: int, seed: int) -> np.ndarray:
    """float64 [rows, vocabulary]."""
    chance = np.random.default_rng(seed)
    logits = chance.normal(size=(rows, vocabulary))
    if kind == "wide":
        return logits * 20
    if kind == "peaked":  # as models give them: few likely ids over a long tail
        logits[:, : min(40, vocabulary)] += np.linspace(16, 4, 40)[:vocabulary]
        return chance.permuted(logits, axis=1) * 2
    if kind == "tied":
        return np.round(logits)
    if kind == "equal":
        return np.full_like(logits, -3.25)
    if kind == "holes":
        logits[:, 1:][chance.random((rows, vocabulary - 1)) < 0.7] = -np.inf
    return logits * {"flat": 0.01, "huge": 1e30}.get(kind, 2.0)


@st.composite
def steps(draw) -> tuple[np.ndarray, list[SampleRequest]]:
    """The logits of a step and what its sessions ask for."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    vocabulary = draw(st.sampled_from(VOCABULARIES))
    logits = logits_of(draw(SPREADS), sum(counts), vocabulary, draw(st.integers(0, 2**32)))
    requests, first = [], 0
    for count in counts:
        params = draw(PARAMS)
        if draw(st.booleans()):
            biases = draw(st.dictionaries(st.integers(0, vocabulary - 1), st.floats(-100, 100), max_size=5))
            params = SamplingParams(
                params.temperature, params.top_k, params.top_p, logit_bias=(*biases.items(),)
            )
        masks = None
        if draw(st.booleans()):
            allowed = np.random.default_rng(draw(st.integers(0, 99))).random((count, vocabulary)) < 0.3
            allowed |= np.arange(vocabulary) == logits[first : first + count].argmax(axis=1)[:, None]
            masks = [np.packbits(row, bitorder="little").tobytes() for row in allowed]
        key, position = draw(st.binary(min_size=16, max_size=16)), draw(st.integers(0, 2**31))
        requests.append(SampleRequest(range(first, first + count), params, key, position, masks))
        first += count
    return logits, requests


@given(steps(), st.sampled_from((torch.float64, torch.float32, torch.bfloat16, torch.float16)))
def test_torch_draws_the_same_tokens_row_by_row_and_in_groups(step, dtype):
    logits, requests = step
    tensor = torch.from_numpy(logits.clip(-60_000, 60_000) if dtype is torch.float16 else logits).to(dtype)
    expected = torch_tokens(tensor, requests)
    assert TorchScores(tensor).sample(requests) == expected
    assert Grouped(tensor).sample(requests) == expected


@given(steps(), st.sampled_from((np.float64, np.float32)))
def test_numpy_draws_the_same_tokens(step, dtype):
    logits, requests = step
    assert NumpyScores(logits.astype(dtype)).sample(requests) == numpy_tokens(logits.astype(dtype), requests)


@pytest.mark.parametrize("kind", ["peaked", "normal", "equal"])
@pytest.mark.parametrize("vocabulary", [49_152, 151_936])
def test_large_vocabularies(kind, vocabulary):
    logits = logits_of(kind, 6, vocabulary, 1).astype(np.float32)
    shapes = (
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(top_k=40),
    )
    requests = [SampleRequest([2 * i, 2 * i + 1], params, b"k" * 16, 99) for i, params in enumerate(shapes)]
    tensor = torch.from_numpy(logits)
    expected = torch_tokens(tensor, requests)
    assert TorchScores(tensor).sample(requests) == Grouped(tensor).sample(requests) == expected
    assert NumpyScores(logits).sample(requests) == numpy_tokens(logits, requests)


@pytest.mark.parametrize("kind", ["flat", "normal", "wide", "peaked", "tied", "equal", "holes"])
def test_few_ids_contend_and_the_winner_is_among_them(kind):
    for seed in range(20):
        [logits] = logits_of(kind, 1, 20_000, seed)
        key = seed.to_bytes(16, "little")
        noisy = logits / 0.8 + gumbel(key, 5, np.arange(len(logits)))
        ids = contenders(logits, 0.8, key, 5)
        assert noisy.argmax() in ids and len(ids) < 20


@pytest.mark.parametrize("shape", [{}, {"top_p": 0.9}, {"temperature": 0}], ids=str)
def test_more_sessions_take_no_more_launches(shape):
    params = SamplingParams(**shape)
    tensor = torch.from_numpy(logits_of("peaked", 40, 5000, 2))
    counts = [launches(lambda: Grouped(tensor).sample(requests_of(n, 5, params))) for n in (1, 4, 8)]  # noqa: B023
    assert counts[0] == counts[1] == counts[2] < 80


def test_what_ends_a_nucleus_is_a_sum_of_whole_numbers(monkeypatch):
    """A GPU sums fractions of one row in another order than those of many, so its last bits depend on the company."""
    summed, cumsum = [], torch.Tensor.cumsum
    monkeypatch.setattr(
        torch.Tensor,
        "cumsum",
        lambda self, **options: (summed.append(self.dtype), cumsum(self, **options))[1],
    )
    logits = torch.from_numpy(logits_of("normal", 3, 1000, 1))
    requests = [SampleRequest((row,), SamplingParams(top_p=0.9), bytes(16), row) for row in range(3)]
    TorchScores(logits).sample_groups(requests)
    assert summed and not any(dtype.is_floating_point for dtype in summed)
