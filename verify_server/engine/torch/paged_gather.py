"""Attention by the table that GPU kernels read (paged_table.py), in plain torch on any device.

All of its shapes follow from the table's, so it can run where shapes are fixed (static_step.py), also without a GPU. It
gathers all keys that a table has room for, which only tests and attention `gather` can afford.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify_server.engine.base import MAX_TREE
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.packing import Attend, PackedBatch
from verify_server.engine.torch.paged_table import TILE_ROWS, PagedBackend, PagedTable


class _GatherBackend(PagedBackend):
    """Attention `gather`."""

    def attend(self, query: Tensor, batch: PackedBatch, how: Attend) -> Tensor:
        """See `AttentionBackend`."""
        table: PagedTable = batch.plan
        keys, values = _gather(table, *batch.memory.layer(how.layer))  # [tiles, K, KV heads, size]
        lanes, live = _lanes(table)
        tiles, kv_heads = len(lanes), keys.shape[2]
        folded = query.shape[1] // kv_heads
        asked = query[lanes].view(tiles, TILE_ROWS, kv_heads, folded, -1)
        scores = torch.einsum("tqhfd,tkhd->tqhfk", asked, keys) * how.scaling
        if how.softcap is not None:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        seen = (_visible_keys(table, lanes, how.window) & live[:, :, None])[:, :, None, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        found = torch.einsum("tqhfk,tkhd->tqhfd", weights, values).flatten(0, 1).flatten(1, 2)
        # Lanes that are no rows all write to one row behind the last.
        out = query.new_zeros(len(query) + 1, *found.shape[1:])
        out.index_copy_(0, torch.where(live, lanes, len(query)).flatten(), found)
        return out[:-1]


def _lanes(table: PagedTable) -> tuple[Tensor, Tensor]:
    """[tiles, TILE_ROWS] the packed row of each lane, and whether it is one."""
    lane = torch.arange(TILE_ROWS, device=table.tiles.device)
    first, count = table.tiles[:, 1:2], table.tiles[:, 2:3]
    live = lane < count
    return torch.where(live, first + lane, 0).long(), live


def _gather(table: PagedTable, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """[tiles, K, KV heads, size], zeros where no key is."""
    place = torch.arange(table.max_keys, device=table.blocks.device)
    text_end, end = table.contexts[:, :1], table.contexts[:, 1:]
    block = table.blocks[:, (place // BLOCK_SIZE).clamp_max(table.blocks.shape[1] - 1)]
    near = table.near.gather(1, (place - text_end).clamp(0, MAX_TREE - 1).long())
    slots = torch.where(place < text_end, block * BLOCK_SIZE + place % BLOCK_SIZE, near).long()
    there = (place < end)[:, :, None, None]
    of_tile = table.tiles[:, 0].long()
    found = [torch.where(there, stored[slots], 0)[of_tile] for stored in (keys, values)]
    return found[0], found[1]


def _visible_keys(table: PagedTable, lanes: Tensor, window: int | None) -> Tensor:
    """[tiles, TILE_ROWS, K] whether a row sees a key."""
    place = torch.arange(table.max_keys, device=lanes.device)
    of_tile = table.tiles[:, 0].long()
    text_end, end = table.contexts[of_tile, 0, None], table.contexts[of_tile, 1, None]
    index = (place - text_end).clamp(0, MAX_TREE - 1)
    facts = table.rows[lanes]  # [tiles, TILE_ROWS, ROW]
    half = torch.where((index < 32)[:, None], facts[:, :, 2:3], facts[:, :, 3:4])
    on_path = (half >> (index % 32)[:, None]) & 1 != 0
    seen = torch.where((place < text_end)[:, None], place <= facts[:, :, :1], on_path)
    seen = seen & (place < end)[:, None]
    if window is not None:
        depth = table.depths[of_tile].gather(1, index.long())
        positions = torch.where(place < text_end, place, text_end - 1 + depth)
        seen = seen & (positions[:, None] > facts[:, :, 1:2] - window)
    return seen


BACKEND = _GatherBackend()
