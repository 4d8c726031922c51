"""Attention over paged KV, called by every transformers layer through `AttentionInterface`.

Scaling, window and softcap are read from the call, never from a config: they differ between the layers of one model.
A backend computes one layer's attention for a packed batch; SDPA runs on every device.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from opensled.errors import UnsupportedModel
from verify_server.engine.packing import Attend, Group, PackedBatch

NAME = "opensled_paged"
# What other models ask of attention beyond causal order; silently ignoring one would give wrong tokens.
REFUSED = {"s_aux": "attention sinks", "sinks": "attention sinks", "position_bias": "a position bias"}


# (query [rows, heads, size], batch, how) -> [rows, heads, value size]; zeros for padded rows
Backend = Callable[[Tensor, PackedBatch, Attend], Tensor]


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    opensled_batch: PackedBatch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer: stores the new keys and values, attends; [1, heads, rows, size] -> [1, rows, heads, value size].

    Raises UnsupportedModel if the layer asks for a kind of attention that is not ours.
    """
    if opensled_batch is None:
        raise UnsupportedModel(
            f"{type(module).__name__} is not handed the arguments of the model call; no paged KV"
        )
    _refuse_foreign(kwargs, attention_mask, is_causal)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    how = Attend(_layer_of(module), scaling, sliding_window, softcap)
    opensled_batch.calls.append(how)
    live = len(opensled_batch.slots)
    keys, values = key[0].transpose(0, 1)[:live], value[0].transpose(0, 1)[:live]
    opensled_batch.memory.write(how.layer, opensled_batch.slots, keys, values)
    opensled_batch.memory.clear(how.layer, opensled_batch.tails)
    out = BACKENDS[opensled_batch.backend](query[0].transpose(0, 1), opensled_batch, how)
    return out[None], None


AttentionInterface.register(NAME, paged_attention)


def _layer_of(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel(f"{type(module).__name__} does not say which layer it is; its KV has no place")
    return layer


def _refuse_foreign(kwargs: dict[str, Any], attention_mask: Tensor | None, is_causal: bool | None) -> None:
    for name, meaning in REFUSED.items():
        if kwargs.get(name) is not None:
            raise UnsupportedModel(
                f"this model needs {meaning} ({name}), which the torch engine does not have"
            )
    if attention_mask is not None or is_causal is False:
        raise UnsupportedModel("this model attends by a mask of its own; only causal decoders can be targets")


def attend_sdpa(query: Tensor, batch: PackedBatch, how: Attend) -> Tensor:
    """A `Backend` on any device: one call per group of equal shape, query heads folded onto their KV head."""
    out: Tensor | None = None
    for group in batch.groups:
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


BACKENDS: dict[str, Backend] = {"sdpa": attend_sdpa}
