"""Attention of drafts over whole windows of text, as `Attention` of base.py, for training."""

from collections.abc import Sequence

import torch
from torch import Tensor

from verify_server.drafting.heads.base import Context


class WindowAttention:
    """Drafts from many rows of several windows at once: each sees its own window, up to its row.

    `context` is of all rows, window by window, `sizes` of them each. `rows`: for each window the rows, counted from its
    beginning, from which a draft starts; the drafts stand in that order.
    """

    def __init__(self, context: Context, sizes: Sequence[int], rows: Sequence[Tensor]) -> None:
        self._keys, self._values = context.keys.split(list(sizes)), context.values.split(list(sizes))
        self._rows = list(rows)

    def __call__(self, queries: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
        counts = [len(rows) for rows in self._rows]
        owns = zip(*(part.split(counts) for part in own)) if own else [None] * len(counts)
        parts = zip(queries.split(counts), owns, self._keys, self._values, self._rows)
        return torch.cat([_attended(*part) for part in parts])


def _attended(
    queries: Tensor, own: tuple[Tensor, Tensor] | None, keys: Tensor, values: Tensor, rows: Tensor
) -> Tensor:
    """[B, Q, heads, size] of the drafts of one window."""
    drafts, count, heads, size = queries.shape
    kv_heads, seen = keys.shape[1], len(keys)
    # Heads that share keys and values side by side: [KV heads, B, queries, size].
    folded = queries.view(drafts, count, kv_heads, -1, size).permute(2, 0, 3, 1, 4)
    folded = folded.reshape(kv_heads, drafts, -1, size) * size**-0.5
    scores = (folded.flatten(1, 2) @ keys.permute(1, 2, 0)).view(kv_heads, drafts, -1, seen)
    later = torch.arange(seen) > rows[:, None]
    scores = scores.masked_fill(later[:, None], -torch.inf)
    if own is not None:
        scores = torch.cat([scores, folded @ own[0].permute(2, 0, 3, 1)], dim=-1)
    shares = scores.float().softmax(-1).to(values)
    found = (shares[..., :seen].flatten(1, 2) @ values.transpose(0, 1)).view_as(folded)
    if own is not None:
        found = found + shares[..., seen:] @ own[1].permute(2, 0, 1, 3)
    found = found.view(kv_heads, drafts, heads // kv_heads, count, size).permute(1, 3, 0, 2, 4)
    return found.reshape(drafts, count, heads, size)
