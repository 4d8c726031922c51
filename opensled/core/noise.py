"""Shared noise: the randomness of sampling as a pure function of (key, position, token id).

Device and server draw the token at position t as `argmax_v(z_v / T + G(key, t, v))` with the same Gumbel
noise G, so their samples often agree and agreement can be checked by `==`; no probability crosses the wire.
Position-keyed Gumbel-max coupling: arXiv 2408.07978. The integer part is bit-equal here and in
`verify_server/engine/torch/torch_noise.py` (torch); the last bit of `log` may differ, which costs acceptance only.
"""

import hashlib

import numpy as np

MASK64 = (1 << 64) - 1
# Constants of splitmix64 (Steele, Lea, Flood 2014): a counter times GOLDEN, then two multiply-xorshift rounds.
GOLDEN = 0x9E3779B97F4A7C15
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB

KEY_BYTES = 16


def noise_key(seed: int) -> bytes:
    """The 16-byte key of a user's seed (any 64-bit signed integer)."""
    return hashlib.blake2b(
        seed.to_bytes(8, "little", signed=True), digest_size=KEY_BYTES, person=b"opensled-noise-1"
    ).digest()


def mix64(x: int) -> int:
    """splitmix64's finalizer on one unsigned 64-bit integer."""
    x = ((x ^ (x >> 30)) * MIX1) & MASK64
    x = ((x ^ (x >> 27)) * MIX2) & MASK64
    return x ^ (x >> 31)


def row_seed(key: bytes, position: int) -> int:
    """The 64-bit seed of one position's row of noise; position counts from 0 at the first prompt token."""
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    return mix64(low ^ mix64((high + GOLDEN * (position + 1)) & MASK64))


def hash_bits(key: bytes, position: int, ids: np.ndarray) -> np.ndarray:
    """uint64 hash of each token id at `position`; shape of `ids`."""
    x = np.uint64(row_seed(key, position)) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX2)
    return x ^ (x >> np.uint64(31))


def uniform(key: bytes, position: int) -> float:
    """One number in (0, 1) for a position: 52 bits, centred in their cell."""
    return float(_unit(hash_bits(key, position, np.zeros(1, np.int64)))[0])


def gumbel(key: bytes, position: int, ids: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise for each id, float64, shape of `ids`.

    52 bits centred in their cell keep u strictly inside (0, 1): in float32 u would round to 1 and G to infinity.
    """
    return -np.log(-np.log(_unit(hash_bits(key, position, ids))))


def _unit(bits: np.ndarray) -> np.ndarray:
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
