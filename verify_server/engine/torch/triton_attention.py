"""Attention over paged KV in Triton: keys and values are read where they lie, once for all rows of a tile.

A program computes one tile of rows with all query heads of one KV head, over one split of SPLIT places; a second kernel
joins the splits. Tiles and splits have one fixed size, and splits begin at fixed places, so the order in which a row's
sums are made depends on its place alone: never on its batch, on the rows of its tile, or on how long other texts are.
What a row does not see weighs exactly 0 there. (The running maximum is that of FlashAttention-2, arXiv 2307.08691, and
the splits are those of Flash-Decoding.)

Without a GPU the kernels run in Triton's interpreter (TRITON_INTERPRET=1), for tests.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opensled.core.errors import UsageError
from verify_server.engine.torch.packing import Attend, PackedBatch
from verify_server.engine.torch.paged_table import TILE_ROWS, PagedBackend, PagedTable
from verify_server.engine.torch.triton_kernels import attend_split, join_splits

SPLIT = 512  # places
LEAST = 16  # of each side of a matrix product in Triton
# What keeps all of a tile in registers on compute capabilities 8.0, 8.9, 9.0 and 10.0 (tests/test_triton_kernels.py)
WARPS, KEY_BYTES = 8, 64
# The interpreter of Triton 3.9 multiplies the bits of bfloat16 as if they were whole numbers.
INTERPRETED: bool = triton.knobs.runtime.interpret


class _TritonBackend(PagedBackend):
    """Attention `triton`."""

    def attend(self, query: Tensor, batch: PackedBatch, how: Attend) -> Tensor:
        """See `AttentionBackend`."""
        keys, values = batch.memory.layer(how.layer)
        return attend(query, keys, values, batch.plan, how)


def attend(query: Tensor, keys: Tensor, values: Tensor, table: PagedTable, how: Attend) -> Tensor:
    """[rows, heads, size] over `keys` and `values` [slots, KV heads, size] -> [rows, heads, value size]."""
    rows, heads, size = query.shape
    _, kv_heads, value_size = values.shape
    splits = -(-table.max_keys // SPLIT)
    arithmetic = _arithmetic(query.dtype)
    sums = query.new_empty((splits, rows, heads, value_size), dtype=arithmetic)
    peaks, masses = query.new_empty((2, splits, rows, heads), dtype=arithmetic)
    out = query.new_empty((rows, heads, value_size))
    constants = attend_constants(query.dtype, heads // kv_heads, size, value_size, how)
    attend_split[(len(table.tiles), kv_heads, splits)](
        query, keys, values, sums, peaks, masses,
        table.tiles, table.rows, table.contexts, table.blocks, table.near, table.depths,
        how.scaling, how.softcap or 1.0,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        rows, heads, table.blocks.shape[1], **constants, num_warps=WARPS,
    )  # fmt: skip
    constants = join_constants(query.dtype, heads // kv_heads, value_size)
    join_splits[(rows, kv_heads)](sums, peaks, masses, out, table.rows, rows, heads, **constants)
    return out


def attend_constants(
    dtype: torch.dtype, folded: int, size: int, value_size: int, how: Attend
) -> dict[str, Any]:
    """What `attend_split` is compiled for. `folded`: query heads of one KV head."""
    return {
        "FOLDED": folded,
        "SIZE": size,
        "BLOCK_SIZE_K": _pad(size),
        "VALUE_SIZE": value_size,
        "BLOCK_SIZE_V": _pad(value_size),
        "BLOCK_ROWS": _pad(TILE_ROWS * folded),
        "BLOCK_KEYS": max(LEAST, KEY_BYTES // dtype.itemsize),
        "PLACES": SPLIT,
        "WINDOW": how.window or 0,
        "CAPPED": how.softcap is not None,
        "ARITHMETIC": _TYPES[_arithmetic(dtype)],
        "WIDEN": INTERPRETED and dtype == torch.bfloat16,
    }


def join_constants(dtype: torch.dtype, folded: int, value_size: int) -> dict[str, Any]:
    """What `join_splits` is compiled for."""
    return {
        "FOLDED": folded,
        "BLOCK_FOLDED": triton.next_power_of_2(folded),
        "VALUE_SIZE": value_size,
        "BLOCK_SIZE_V": _pad(value_size),
        "PLACES": SPLIT,
        "ARITHMETIC": _TYPES[_arithmetic(dtype)],
    }


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    """Of sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _pad(size: int) -> int:
    padded: int = max(LEAST, triton.next_power_of_2(size))
    return padded


def _backend() -> _TritonBackend:
    """Raises UsageError without a GPU and without the interpreter."""
    if not torch.cuda.is_available() and not INTERPRETED:
        raise UsageError("attention triton needs a GPU; on a CPU set attention = 'sdpa' in [serve]")
    return _TritonBackend()


BACKEND = _backend()
