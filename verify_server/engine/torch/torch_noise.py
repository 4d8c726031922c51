"""The torch twin of opensled/core/noise.py: the same integer hash bit for bit, over many positions and ids at once.

torch has no unsigned 64-bit arithmetic worth the name, so the hash runs in int64: multiplication and addition
wrap around alike in both, and the logical right shift is an arithmetic one with the sign bits masked off.
"""

import torch
from torch import Tensor

from opensled.core.noise import GOLDEN, MIX1, MIX2


def wrap_int64(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value


def _xorshift(x: Tensor, bits: int) -> Tensor:
    """x ^ (x >>> bits) for int64 x."""
    return x ^ _logical_shift(x, bits)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_bits(seeds: Tensor, ids: Tensor) -> Tensor:
    """The 64-bit hash of each id as int64, shape [rows, n]; `seeds`: `row_seed` of each row as int64, [rows]."""
    x = (ids + 1) * wrap_int64(GOLDEN) + seeds[:, None]
    x = _xorshift(x, 30) * wrap_int64(MIX1)
    x = _xorshift(x, 27) * wrap_int64(MIX2)
    return _xorshift(x, 31)


def gumbel(seeds: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float64, for int64 `ids` of shape [rows, n]; `seeds` as in `hash_bits`."""
    uniform = (_logical_shift(hash_bits(seeds, ids), 12).to(torch.float64) + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_()
