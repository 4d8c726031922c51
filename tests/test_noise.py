"""Shared noise: fixed bits, sane statistics, no infinities."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opensled.core import noise
from opensled.core.errors import InvalidRequest
from opensled.core.messages import SamplingParams
from opensled.core.noise import gumbel, hash_bits, noise_key, row_seed
from opensled.core.sampling import Sampler, most_likely, nucleus
from verify_server.engine.torch import torch_noise

KEY = noise_key(42)


def test_bits_never_change():
    """Another version of the software must draw the same tokens from the same seed."""
    assert noise_key(42).hex() == "c1f7c048f0a0949068500c43ceab9d44"
    assert noise_key(-1) != noise_key(1)
    assert row_seed(KEY, 7) == 0x6C9F445B47E41232
    bits = [int(h) for h in hash_bits(KEY, 7, np.array([0, 1, 151_935]))]
    assert bits == [4543286747662608411, 5845922420768818696, 1021565376806320035]


def test_noise_is_finite_and_gumbel_distributed():
    noise = np.concatenate([gumbel(KEY, position, np.arange(5000)) for position in range(40)])
    assert noise.dtype == np.float64  # in float32 one in 30 million is infinite: too rare to be seen here
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.03)


def test_noise_depends_on_key_position_and_id_only():
    ids = np.array([3, 1, 2])
    assert (gumbel(KEY, 5, ids) == gumbel(KEY, 5, np.arange(10))[ids]).all()
    assert not (gumbel(KEY, 5, ids) == gumbel(KEY, 6, ids)).any()
    assert not (gumbel(KEY, 5, ids) == gumbel(noise_key(43), 5, ids)).any()


def test_candidates_are_sorted_and_ties_go_to_the_lowest_id():
    assert most_likely(np.array([1.0, 5.0, 5.0, 2.0, 5.0]), 2).tolist() == [1, 2]
    assert most_likely(np.array([1.0, 5.0, 5.0, 2.0, 5.0]), 9).tolist() == [1, 2, 4, 3, 0]


def test_nucleus_is_the_smallest_set_that_reaches_top_p():
    probs = np.array([0.5, 0.3, 0.2])
    assert [nucleus(probs, top_p) for top_p in (0.4, 0.5, 0.51, 0.8, 0.9, 1.0)] == [1, 1, 2, 2, 3, 3]


def test_a_nucleus_ends_at_the_same_place_however_its_sum_is_rounded():
    assert [nucleus(np.full(1000, 1 / 1000), count / 1000) for count in range(1, 1001)] == [*range(1, 1001)]
    assert nucleus(np.array([0.5, 0.5]), 1e-30) == 1


def test_greedy_needs_no_noise_and_top_k_one_is_greedy():
    logits = np.random.default_rng(0).normal(size=500)
    best = int(np.argmax(logits))
    for params in (SamplingParams(temperature=0), SamplingParams(top_k=1), SamplingParams(top_p=1e-9)):
        assert Sampler(params, KEY).draw(logits, 9).id == best


def test_greedy_confidence_is_the_models_probability_and_ties_go_to_the_lowest_id():
    logits = np.log(np.array([0.2, 0.4, 0.4], dtype=np.float32))
    token = Sampler(SamplingParams(temperature=0), KEY).draw(logits, 9)
    assert token.id == 1 and token.confidence == pytest.approx(0.4)
    assert Sampler(SamplingParams(temperature=0), KEY).draw(logits * 1000, 9).confidence == pytest.approx(0.5)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_confidence_nobody_asks_for_changes_no_token(temperature):
    rng = np.random.default_rng(1)
    asked = Sampler(SamplingParams(temperature=temperature), KEY)
    unasked = Sampler(SamplingParams(temperature=temperature), KEY, with_confidence=False)
    for position in range(20):
        logits = rng.normal(size=200).astype(np.float32)
        drawn, bare = asked.draw(logits, position), unasked.draw(logits, position)
        assert bare.id == drawn.id and bare.confidence == 1.0 > drawn.confidence


def test_draws_follow_the_softmax():
    logits = np.log(np.array([0.6, 0.3, 0.1]))
    sampler = Sampler(SamplingParams(temperature=1.0), KEY)
    draws = [sampler.draw(logits, position).id for position in range(6000)]
    assert np.bincount(draws) / 6000 == pytest.approx([0.6, 0.3, 0.1], abs=0.02)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-300),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("seed", 2**63),
        ("max_tokens", -1),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


# -- the target's noise is the drafts' ----------------------------------------------------------------------------


def seeds(key, position, rows=1):
    """The seeds of consecutive positions."""
    return torch.tensor([torch_noise.wrap_int64(noise.row_seed(key, position + row)) for row in range(rows)])


keys = st.binary(min_size=noise.KEY_BYTES, max_size=noise.KEY_BYTES)
positions = st.one_of(st.integers(0, 300), st.integers(0, 2**62))
ids = st.lists(st.one_of(st.integers(0, 300_000), st.integers(0, 2**62)), min_size=1, max_size=20)


@given(keys, positions, ids)
def test_the_hash_is_bit_equal(key, position, ids):
    rows = torch.tensor([ids, ids])
    hashed = torch_noise.hash_bits(seeds(key, position, len(rows)), rows).numpy().view(np.uint64)
    for row in range(2):
        assert (hashed[row] == noise.hash_bits(key, position + row, np.array(ids))).all()


@given(keys, positions)
def test_the_noise_agrees_to_the_last_bits_and_is_finite(key, position):
    vocabulary = np.arange(2000)
    given = torch_noise.gumbel(seeds(key, position), torch.from_numpy(vocabulary)[None])[0].numpy()
    assert np.isfinite(given).all()
    np.testing.assert_allclose(given, noise.gumbel(key, position, vocabulary), rtol=1e-13, atol=1e-13)


def test_a_row_does_not_depend_on_its_company():
    vocabulary = torch.arange(50_000).expand(5, -1)
    together = torch_noise.gumbel(seeds(b"k" * 16, 7, len(vocabulary)), vocabulary)
    for row in range(5):
        assert torch.equal(together[row], torch_noise.gumbel(seeds(b"k" * 16, 7 + row), vocabulary[:1])[0])
