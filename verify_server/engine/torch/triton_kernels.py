"""The kernels of triton_attention.py. What their tables hold is said in paged_table.py.

Each row is a token of a packed batch; a *lane* is one query head of one row.
"""

import triton
import triton.language as tl

from verify_server.engine.base import MAX_TREE
from verify_server.engine.torch import paged_table
from verify_server.engine.torch.kv_memory import BLOCK_SIZE

TILE, ROW = tl.constexpr(paged_table.TILE), tl.constexpr(paged_table.ROW)
CONTEXT, NEAR = tl.constexpr(paged_table.CONTEXT), tl.constexpr(MAX_TREE)
PAGE = tl.constexpr(BLOCK_SIZE)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_split(
    query, keys, values, sums, peaks, masses, tiles, row_table, contexts, blocks, near, near_depths,
    scaling, softcap, query_row, query_head, key_slot, key_head, value_slot, value_head,
    num_rows, num_heads, max_blocks,
    FOLDED: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE_V: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, PLACES: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, ARITHMETIC: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile, one KV head, one split: weighted sums, their largest score (log2) and their mass."""
    kv_head, split = tl.program_id(1), tl.program_id(2)
    tile = tiles + tl.program_id(0) * TILE
    context, count, tile_end = tl.load(tile), tl.load(tile + 2), tl.load(tile + 3)
    begin = split * PLACES
    if (count > 0) & (begin < tile_end):
        text_end = tl.load(contexts + context * CONTEXT)
        lane = tl.arange(0, BLOCK_ROWS)
        row, head = tl.load(tile + 1) + lane // FOLDED, kv_head * FOLDED + lane % FOLDED
        live = lane < count * FOLDED
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
            first_seen = tl.maximum(tl.load(tile + 4) - WINDOW + 1, 0)
            start = tl.maximum(begin, (first_seen // BLOCK_KEYS) * BLOCK_KEYS)
        for at in range(start, tl.minimum(tile_end, begin + PLACES), BLOCK_KEYS):
            place = at + tl.arange(0, BLOCK_KEYS)
            there = place < tile_end
            slot, key_position = _keys_at(
                place, there, text_end, blocks + context * max_blocks, near + context * NEAR,
                near_depths + context * NEAR,
            )  # fmt: skip
            seen = (
                _visible_keys(place, key_position, text_end, row_table + row * ROW, live, WINDOW)
                & there[None, :]
            )
            key = _tile(keys + kv_head * key_head, slot, key_slot, there, column, SIZE)
            score = _product(asked, tl.trans(key), ARITHMETIC, WIDEN) * scaling
            if CAPPED:
                score = softcap * _tanh(score / softcap)
            peak, weight, kept = _weigh(tl.where(seen, score * LOG2_E, float("-inf")), peak)
            value = _tile(values + kv_head * value_head, slot, value_slot, there, value_column, VALUE_SIZE)
            mass = mass * kept + tl.sum(weight, 1)
            total = total * kept[:, None] + _product(weight.to(value.dtype), value, ARITHMETIC, WIDEN)
        out = (split * num_rows + row.to(tl.int64)) * num_heads + head
        tl.store(peaks + out, peak, mask=live)
        tl.store(masses + out, mass, mask=live)
        wide = live[:, None] & (value_column < VALUE_SIZE)[None, :]
        tl.store(sums + out[:, None] * VALUE_SIZE + value_column[None, :], total, mask=wide)


@triton.jit
def _keys_at(place, there, text_end, blocks, near, near_depths):
    """Slots of the keys at `place`, and their positions: of the text by its blocks, behind it one by one."""
    is_near = place >= text_end
    index = tl.where(is_near, place - text_end, 0)
    page = tl.load(blocks + place // PAGE, mask=there & (place < text_end), other=0)
    near_slot = tl.load(near + index, mask=there & is_near, other=0)
    depth = tl.load(near_depths + index, mask=there & is_near, other=0)
    slot = tl.where(is_near, near_slot, page * PAGE + place % PAGE).to(tl.int64)
    return slot, tl.where(is_near, text_end - 1 + depth, place)


@triton.jit
def _visible_keys(place, key_position, text_end, row, live, WINDOW: tl.constexpr):
    """[lanes, keys] whether a lane sees a key: of the text up to its own, of a tree those on its path."""
    last_seen = tl.load(row, mask=live, other=-1)
    low_bits, high_bits = tl.load(row + 2, mask=live, other=0), tl.load(row + 3, mask=live, other=0)
    is_near = place >= text_end
    index = tl.where(is_near, place - text_end, 0)
    half = tl.where((index < 32)[None, :], low_bits[:, None], high_bits[:, None])
    on_path = ((half >> (index % 32)[None, :]) & 1) != 0
    seen = tl.where(is_near[None, :], on_path, place[None, :] <= last_seen[:, None])
    if WINDOW > 0:
        position = tl.load(row + 1, mask=live, other=0)
        seen = seen & (key_position[None, :] > position[:, None] - WINDOW)
    return seen


@triton.jit
def _tile(stored, slot, stride, there, column, SIZE: tl.constexpr):
    """[keys, numbers] of keys or values, 0 where none is."""
    mask = there[:, None] & (column < SIZE)[None, :]
    return tl.load(stored + slot[:, None] * stride + column[None, :], mask=mask, other=0.0)


@triton.jit
def _weigh(score, peak):
    """The new peak, the weight of each score under it, and what weights under the old one become."""
    higher = tl.maximum(peak, tl.max(score, 1))
    # Rows that have seen nothing yet: their differences would be NaN.
    level = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, tl.exp2(score - level[:, None]), tl.exp2(peak - level)


@triton.jit
def join_splits(
    sums, peaks, masses, out, row_table, num_rows, num_heads, FOLDED: tl.constexpr, BLOCK_FOLDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr, BLOCK_SIZE_V: tl.constexpr, PLACES: tl.constexpr, ARITHMETIC: tl.constexpr,
):  # fmt: skip
    """The query heads of one KV head of one row, over the splits that the row sees, in their order."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.cdiv(tl.load(row_table + row * ROW + 4), PLACES)
    lane, column = tl.arange(0, BLOCK_FOLDED), tl.arange(0, BLOCK_SIZE_V)
    head = tl.program_id(1) * FOLDED + lane
    live, wide = lane < FOLDED, (lane < FOLDED)[:, None] & (column < VALUE_SIZE)[None, :]
    peak = tl.full([BLOCK_FOLDED], float("-inf"), ARITHMETIC)
    for split in range(splits):
        place = (split * num_rows + row) * num_heads + head
        peak = tl.maximum(peak, tl.load(peaks + place, mask=live, other=0.0))
    mass = tl.zeros([BLOCK_FOLDED], ARITHMETIC)
    total = tl.zeros([BLOCK_FOLDED, BLOCK_SIZE_V], ARITHMETIC)
    for split in range(splits):
        place = (split * num_rows + row) * num_heads + head
        weight = tl.exp2(tl.load(peaks + place, mask=live, other=0.0) - peak)
        mass += weight * tl.load(masses + place, mask=live, other=1.0)
        own = tl.load(sums + place[:, None] * VALUE_SIZE + column[None, :], mask=wide, other=0.0)
        total += weight[:, None] * own
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
    small = tl.exp2(tl.abs(x) * LOG2_E * -2.0)
    size = (1 - small) / (1 + small)
    return tl.where(x < 0, -size, size)
