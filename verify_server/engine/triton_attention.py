"""Attention over paged KV in Triton: keys and values are read where they lie, once for all rows of a tile.

A program computes one tile of rows with all query heads of one KV head, over one split of SPLIT places; a second kernel
joins the splits. Tiles and splits have one fixed size, and splits begin at fixed places, so the order in which a row's
sums are made depends on its place alone: never on its batch, on the rows of its tile, or on how long other texts are.
What a row does not see weighs exactly 0 there. (The running maximum is that of FlashAttention-2, arXiv 2307.08691, and
the splits are those of Flash-Decoding.)

Without a GPU the kernels run in Triton's interpreter (TRITON_INTERPRET=1), for tests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from opensled.errors import UsageError
from verify_server.engine.base import MAX_TREE
from verify_server.engine.kv_memory import BLOCK_SIZE
from verify_server.engine.packing import Attend, PackedBatch
from verify_server.engine.paged_table import CONTEXT, ROW, TILE, TILE_ROWS, PagedBackend, PagedTable

SPLIT = 512  # places
LEAST = 16  # of each side of a matrix product in Triton
# The interpreter of Triton 3.9 multiplies the bits of bfloat16 as if they were whole numbers.
INTERPRETED: bool = triton.knobs.runtime.interpret


class TritonBackend(PagedBackend):
    """`--attention triton`."""

    def attend(self, query: Tensor, batch: PackedBatch, how: Attend) -> Tensor:
        """See `Backend`."""
        keys, values = batch.memory.layer(how.layer)
        return attend(query, keys, values, batch.plan, how)


def attend(query: Tensor, keys: Tensor, values: Tensor, table: PagedTable, how: Attend) -> Tensor:
    """[rows, heads, size] over `keys` and `values` [slots, KV heads, size] -> [rows, heads, value size]."""
    rows, heads, size = query.shape
    _, kv_heads, value_size = values.shape
    splits = -(-table.most_keys // SPLIT)
    arithmetic = torch.float64 if query.dtype == torch.float64 else torch.float32
    sums = query.new_empty((splits, rows, heads, value_size), dtype=arithmetic)
    peaks, masses = query.new_empty((2, splits, rows, heads), dtype=arithmetic)
    out = query.new_empty((rows, heads, value_size))
    folded = heads // kv_heads
    block_rows = max(LEAST, triton.next_power_of_2(TILE_ROWS * folded))
    _attend_split[(len(table.tiles), kv_heads, splits)](
        query, keys, values, sums, peaks, masses,
        table.tiles, table.rows, table.contexts, table.blocks, table.near, table.depths,
        how.scaling, how.softcap or 1.0,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        rows, heads, table.blocks.shape[1],
        FOLDED=folded, SIZE=size, BLOCK_SIZE_K=_padded(size), VALUE_SIZE=value_size, BLOCK_SIZE_V=_padded(value_size),
        BLOCK_ROWS=block_rows, BLOCK_KEYS=64 if query.element_size() == 2 else 32, PLACES=SPLIT,
        WINDOW=how.window or 0, CAPPED=how.softcap is not None, ARITHMETIC=_TYPES[arithmetic],
        TILE_NUMBERS=TILE, ROW_NUMBERS=ROW, CONTEXT_NUMBERS=CONTEXT, NEAR=MAX_TREE, PAGE=BLOCK_SIZE,
        WIDEN=INTERPRETED and query.dtype == torch.bfloat16,
        num_warps=4 if block_rows <= 64 else 8,
    )  # fmt: skip
    _join_splits[(rows, kv_heads)](
        sums, peaks, masses, out, table.rows, rows, heads,
        FOLDED=folded, BLOCK_FOLDED=triton.next_power_of_2(folded),
        VALUE_SIZE=value_size, BLOCK_SIZE_V=_padded(value_size), PLACES=SPLIT, ARITHMETIC=_TYPES[arithmetic],
        ROW_NUMBERS=ROW,
    )  # fmt: skip
    return out


_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _padded(size: int) -> int:
    return max(LEAST, triton.next_power_of_2(size))


@triton.jit
def _attend_split(
    query, keys, values, sums, peaks, masses,
    tiles, row_table, contexts, blocks, near, near_depths,
    scaling, softcap,
    query_row, query_head, key_slot, key_head, value_slot, value_head,
    num_rows, num_heads, most_blocks,
    FOLDED: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE_V: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, PLACES: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, ARITHMETIC: tl.constexpr,
    TILE_NUMBERS: tl.constexpr, ROW_NUMBERS: tl.constexpr, CONTEXT_NUMBERS: tl.constexpr,
    NEAR: tl.constexpr, PAGE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile, one KV head, one split: weighted sums, their largest score (log2) and their mass."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own = tiles + tile * TILE_NUMBERS
    context, first_row, count = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    tile_end, lowest = tl.load(own + 3), tl.load(own + 4)
    begin = split * PLACES
    if (count > 0) & (begin < tile_end):
        text_end = tl.load(contexts + context * CONTEXT_NUMBERS)
        lane = tl.arange(0, BLOCK_ROWS)  # a query head of a row
        row = first_row + lane // FOLDED
        head = kv_head * FOLDED + lane % FOLDED
        live = lane < count * FOLDED
        facts = row_table + row * ROW_NUMBERS
        last_seen = tl.load(facts, mask=live, other=-1)
        position = tl.load(facts + 1, mask=live, other=0)
        low_bits = tl.load(facts + 2, mask=live, other=0)
        high_bits = tl.load(facts + 3, mask=live, other=0)
        column, value_column = tl.arange(0, BLOCK_SIZE_K), tl.arange(0, BLOCK_SIZE_V)
        asked = tl.load(
            query + row[:, None].to(tl.int64) * query_row + head[:, None] * query_head + column[None, :],
            mask=live[:, None] & (column < SIZE)[None, :],
            other=0.0,
        )
        peak = tl.full([BLOCK_ROWS], float("-inf"), ARITHMETIC)
        mass = tl.zeros([BLOCK_ROWS], ARITHMETIC)
        total = tl.zeros([BLOCK_ROWS, BLOCK_SIZE_V], ARITHMETIC)
        start = begin
        if WINDOW > 0:  # whole blocks of keys before every window
            start = tl.maximum(begin, (tl.maximum(lowest - WINDOW + 1, 0) // BLOCK_KEYS) * BLOCK_KEYS)
        for at in range(start, tl.minimum(tile_end, begin + PLACES), BLOCK_KEYS):
            place = at + tl.arange(0, BLOCK_KEYS)
            there = place < tile_end
            is_near = place >= text_end
            index = tl.where(is_near, place - text_end, 0)
            page = tl.load(
                blocks + context * most_blocks + place // PAGE, mask=there & (place < text_end), other=0
            )
            near_slot = tl.load(near + context * NEAR + index, mask=there & is_near, other=0)
            depth = tl.load(near_depths + context * NEAR + index, mask=there & is_near, other=0)
            slot = tl.where(is_near, near_slot, page * PAGE + place % PAGE).to(tl.int64)
            key = tl.load(
                keys + slot[None, :] * key_slot + kv_head * key_head + column[:, None],
                mask=there[None, :] & (column < SIZE)[:, None],
                other=0.0,
            )
            score = _product(asked, key, ARITHMETIC, WIDEN) * scaling
            if CAPPED:
                score = softcap * _tanh(score / softcap)
            half = tl.where((index < 32)[None, :], low_bits[:, None], high_bits[:, None])
            on_path = ((half >> (index % 32)[None, :]) & 1) != 0
            seen = tl.where(is_near[None, :], on_path, place[None, :] <= last_seen[:, None]) & there[None, :]
            if WINDOW > 0:
                key_position = tl.where(is_near, text_end - 1 + depth, place)
                seen = seen & (key_position[None, :] > position[:, None] - WINDOW)
            score = tl.where(seen, score * 1.4426950408889634, float("-inf"))
            higher = tl.maximum(peak, tl.max(score, 1))
            # Rows that have seen nothing yet: their differences would be NaN.
            level = tl.where(higher == float("-inf"), 0.0, higher)
            weight = tl.exp2(score - level[:, None])
            kept = tl.exp2(peak - level)
            value = tl.load(
                values + slot[:, None] * value_slot + kv_head * value_head + value_column[None, :],
                mask=there[:, None] & (value_column < VALUE_SIZE)[None, :],
                other=0.0,
            )
            mass = mass * kept + tl.sum(weight, 1)
            total = total * kept[:, None] + _product(weight.to(value.dtype), value, ARITHMETIC, WIDEN)
            peak = higher
        place_out = (split * num_rows + row.to(tl.int64)) * num_heads + head
        tl.store(peaks + place_out, peak, mask=live)
        tl.store(masses + place_out, mass, mask=live)
        tl.store(
            sums + place_out[:, None] * VALUE_SIZE + value_column[None, :],
            total,
            mask=live[:, None] & (value_column < VALUE_SIZE)[None, :],
        )


@triton.jit
def _join_splits(
    sums, peaks, masses, out, row_table, num_rows, num_heads,
    FOLDED: tl.constexpr, BLOCK_FOLDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr, BLOCK_SIZE_V: tl.constexpr, PLACES: tl.constexpr, ARITHMETIC: tl.constexpr,
    ROW_NUMBERS: tl.constexpr,
):  # fmt: skip
    """The query heads of one KV head of one row, over the splits that the row sees, in their order."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.cdiv(tl.load(row_table + row * ROW_NUMBERS + 4), PLACES)
    lane, column = tl.arange(0, BLOCK_FOLDED), tl.arange(0, BLOCK_SIZE_V)
    head = tl.program_id(1) * FOLDED + lane
    live, wide = lane < FOLDED, (lane < FOLDED)[:, None] & (column < VALUE_SIZE)[None, :]
    peak = tl.full([BLOCK_FOLDED], float("-inf"), ARITHMETIC)
    for split in range(splits):
        peak = tl.maximum(
            peak, tl.load(peaks + (split * num_rows + row) * num_heads + head, mask=live, other=0.0)
        )
    mass = tl.zeros([BLOCK_FOLDED], ARITHMETIC)
    total = tl.zeros([BLOCK_FOLDED, BLOCK_SIZE_V], ARITHMETIC)
    for split in range(splits):
        place = (split * num_rows + row) * num_heads + head
        weight = tl.exp2(tl.load(peaks + place, mask=live, other=0.0) - peak)
        mass += weight * tl.load(masses + place, mask=live, other=1.0)
        total += weight[:, None] * tl.load(
            sums + place[:, None] * VALUE_SIZE + column[None, :], mask=wide, other=0.0
        )
    result = total / tl.where(mass > 0, mass, 1.0)[:, None]
    place = (row * num_heads + head)[:, None] * VALUE_SIZE + column[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=wide)


@triton.jit
def _product(left, right, ARITHMETIC: tl.constexpr, WIDEN: tl.constexpr):
    """A matrix product without TensorFloat-32."""
    if WIDEN:
        left, right = left.to(ARITHMETIC), right.to(ARITHMETIC)
    return tl.dot(left, right, input_precision="ieee", out_dtype=ARITHMETIC)


@triton.jit
def _tanh(x):
    small = tl.exp2(-2.8853900817779268 * tl.abs(x))
    size = (1 - small) / (1 + small)
    return tl.where(x < 0, -size, size)


def _backend() -> TritonBackend:
    """Raises UsageError without a GPU and without the interpreter."""
    if not torch.cuda.is_available() and not INTERPRETED:
        raise UsageError("--attention triton needs a GPU; on a processor use --attention sdpa")
    return TritonBackend()


BACKEND = _backend()
