"""The noise of the target must be the noise of the drafts, bit for bit up to the logarithm."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from opensled.core import noise
from verify_server.engine.torch import torch_noise


def seeds(key, position, rows=1):
    """The seeds of consecutive positions."""
    return torch.tensor([torch_noise.wrap_int64(noise.row_seed(key, position + row)) for row in range(rows)])


keys = st.binary(min_size=noise.KEY_BYTES, max_size=noise.KEY_BYTES)
positions = st.one_of(st.integers(0, 300), st.integers(0, 2**62))
ids = st.lists(st.one_of(st.integers(0, 300_000), st.integers(0, 2**62)), min_size=1, max_size=20)


@given(keys, positions, ids)
def test_the_hash_is_bit_equal(key: bytes, position: int, ids: list[int]) -> None:
    rows = torch.tensor([ids, ids])
    hashed = torch_noise.hash_bits(seeds(key, position, len(rows)), rows).numpy().view(np.uint64)
    for row in range(2):
        assert (hashed[row] == noise.hash_bits(key, position + row, np.array(ids))).all()


@given(keys, positions)
def test_the_noise_agrees_to_the_last_bits_and_is_finite(key: bytes, position: int) -> None:
    vocabulary = np.arange(2000)
    given = torch_noise.gumbel(seeds(key, position), torch.from_numpy(vocabulary)[None])[0].numpy()
    assert np.isfinite(given).all()
    np.testing.assert_allclose(given, noise.gumbel(key, position, vocabulary), rtol=1e-13, atol=1e-13)


def test_a_row_does_not_depend_on_its_company() -> None:
    vocabulary = torch.arange(50_000).expand(5, -1)
    together = torch_noise.gumbel(seeds(b"k" * 16, 7, len(vocabulary)), vocabulary)
    for row in range(5):
        assert torch.equal(together[row], torch_noise.gumbel(seeds(b"k" * 16, 7 + row), vocabulary[:1])[0])


def test_the_noise_follows_the_gumbel_law() -> None:
    sample = torch_noise.gumbel(seeds(noise.noise_key(1), 0), torch.arange(200_000)[None])
    assert abs(sample.mean().item() - np.euler_gamma) < 0.01
    assert abs(sample.var().item() - np.pi**2 / 6) < 0.02
