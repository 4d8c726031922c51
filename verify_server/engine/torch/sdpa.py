"""Attention by torch's own kernel, on any device: keys and values are gathered from their blocks for each layer."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from verify_server.engine.base import Segment
from verify_server.engine.torch.packing import Attend, AttentionBackend, Geometry, PackedBatch
from verify_server.engine.torch.sdpa_groups import Group, groups_of


class _SdpaBackend(AttentionBackend):
    """One call per group of equal shape, query heads folded onto their KV head."""

    def plan(
        self, segments: Sequence[Segment], geometry: Geometry, rows: int, device: torch.device
    ) -> list[Group]:
        """See `AttentionBackend`."""
        return groups_of(segments, geometry, rows, device)

    def attend(self, query: Tensor, batch: PackedBatch, how: Attend) -> Tensor:
        """See `AttentionBackend`."""
        out: Tensor | None = None
        groups: list[Group] = batch.plan
        for group in groups:
            attended = _attend_group(query, batch, group, how)
            if group.whole:
                return attended
            if out is None:
                out = query.new_zeros(query.shape[0], *attended.shape[1:])
            out.index_copy_(0, group.live_rows, attended)
        assert out is not None, "a packed batch has at least one group"
        return out


def _attend_group(query: Tensor, batch: PackedBatch, group: Group, how: Attend) -> Tensor:
    """[live queries of the group, heads, value size]."""
    pieces, num_queries = group.places.shape
    keys, values = (_by_piece(stored, group) for stored in _gather(batch, group, how.layer))
    kv_heads, heads = keys.shape[1], query.shape[1]
    folded = heads // kv_heads  # query heads that share one KV head
    chosen = query if group.whole else query.index_select(0, group.rows)
    queries = chosen.reshape(pieces, num_queries, kv_heads, folded, -1)
    queries = queries.permute(0, 2, 3, 1, 4).reshape(pieces, kv_heads, folded * num_queries, -1)
    mask = _mask(group, how.window, folded, query.dtype)
    if how.softcap is None:
        out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=how.scaling)
    else:
        scores = queries @ keys.transpose(-1, -2) * how.scaling
        out = (torch.tanh(scores / how.softcap) * how.softcap + mask).softmax(-1) @ values
    out = out.view(pieces, kv_heads, folded, num_queries, -1).permute(0, 3, 1, 2, 4)
    out = out.reshape(pieces * num_queries, heads, -1)
    return out if len(group.live) == len(out) else out.index_select(0, group.live)


def _gather(batch: PackedBatch, group: Group, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values [B * K, heads, size], those of a branch by path in the order of its path."""
    gathered = batch.memory.gather(layer, group.blocks)
    if group.branches is not None:
        for tensor, own in zip(gathered, batch.memory.fetch(layer, group.branches.slots)):
            tensor.index_copy_(0, group.branches.keys, own)
    return gathered


def _by_piece(stored: Tensor, group: Group) -> Tensor:
    """Gathered [B * K, heads, size] -> [B, heads, K, size]."""
    return stored.view(-1, group.num_keys, *stored.shape[1:]).transpose(1, 2)


def _mask(group: Group, window: int | None, folded: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, 1, folded * Q, K]: 0 where a query sees a key, else -inf; made once a step."""
    wanted = (window, folded, dtype)
    if wanted not in group.masks:
        queries = group.places[:, :, None]
        keys = torch.arange(group.num_keys, device=queries.device)
        hidden = keys > queries
        if group.trees is not None:
            hidden |= group.trees.strangers
            queries, keys = group.trees.positions[:, :, None], group.trees.key_positions[:, None]
        if window is not None:
            hidden |= keys <= queries - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=queries.device).masked_fill_(hidden, -torch.inf)
        group.masks[wanted] = mask.repeat(1, folded, 1)[:, None]
    return group.masks[wanted]


BACKEND = _SdpaBackend()
