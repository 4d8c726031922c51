"""The context of a draft head: what it makes of each row of the target, in the target's own KV blocks.

It is one more attention layer over the same block table, written for every row that a step computes. So it is rolled
back, preempted, shared as a prefix and put in order after a tree exactly as the target's KV is, and it knows nothing of
sessions. Beside keys and values it keeps the inputs from which the head drafts: wherever a text ends, they are there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from verify_server.drafting.heads.base import Attention, Context, DraftHead
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory

log = logging.getLogger(__name__)

# Newest positions of a text that a head attends to, a whole number of blocks: bounds what a draft costs beside a long
# prompt. Heads are trained on windows of this length.
WINDOW = 256
KEYS, INPUTS = 0, 1  # layers of the memory


class HeadContext:
    """`verify_server.engine.torch.tap.RowReader` for one head."""

    def __init__(self, head: DraftHead, num_blocks: int) -> None:
        self._head = head
        self._memory = KVMemory(num_blocks)
        self.taps = head.shape.taps

    def read(self, hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        """The target has computed rows with these tapped states [n, taps, d] at `positions` [n] of their texts."""
        try:
            context = self._head.read(hidden, positions)
        except Exception:
            log.exception("the draft head failed on %d rows; drafts behind them will be poor", len(slots))
            context = self._nothing(hidden)
        self._memory.write(KEYS, slots, context.keys, context.values)
        inputs = context.inputs[:, None]
        self._memory.write(INPUTS, slots, inputs, inputs[..., :0])

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """See `KVMemory.move`."""
        self._memory.move(sources, targets)

    def inputs(self, blocks: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor:
        """[B, d]: of the rows at these positions of texts in these KV blocks."""
        slots = [own[row // BLOCK_SIZE] * BLOCK_SIZE + row % BLOCK_SIZE for own, row in zip(blocks, rows)]
        found = self._memory.fetch(INPUTS, torch.tensor(slots, device=self._device))[0]
        return found[:, 0]

    def attention(self, blocks: Sequence[Sequence[int]], rows: Sequence[int]) -> Attention:
        """For drafts behind these rows, each over the rows of its own text up to there; of a long text over the newest
        of them, about WINDOW."""
        device = self._device
        firsts = [max(0, row // BLOCK_SIZE - WINDOW // BLOCK_SIZE + 1) for row in rows]
        used = [own[first : row // BLOCK_SIZE + 1] for own, first, row in zip(blocks, firsts, rows)]
        most = max(map(len, used))
        filled = [[*own, *[own[0]] * (most - len(own))] for own in used]
        padded = torch.tensor(filled, device=device)
        keys, values = (
            stored.view(len(used), most * BLOCK_SIZE, *stored.shape[1:])
            for stored in self._memory.gather(KEYS, padded.flatten())
        )
        begins = torch.tensor([first * BLOCK_SIZE for first in firsts], device=device)[:, None]
        places = torch.arange(most * BLOCK_SIZE, device=device) + begins
        seen = places <= torch.tensor(list(rows), device=device)[:, None]
        # What lies behind a text is another one's, and NaN would survive the mask.
        hidden = ~seen[..., None, None]
        return _Attending(keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0), seen)

    @property
    def _device(self) -> torch.device:
        return next(self._head.parameters()).device

    def _nothing(self, hidden: Tensor) -> Context:
        shape, count = self._head.shape, len(hidden)
        empty = hidden.new_zeros(count, shape.kv_heads, shape.head_size)
        return Context(hidden.new_zeros(count, shape.size), empty, empty)


class _Attending:
    """An `Attention` over keys and values [B, K, KV heads, size], of which each draft sees those of its text [B, K]."""

    def __init__(self, keys: Tensor, values: Tensor, seen: Tensor) -> None:
        self._keys, self._values, self._seen = keys, values, seen

    def __call__(self, queries: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
        keys, values, seen = self._keys, self._values, self._seen
        if own is not None:
            keys, values = torch.cat([keys, own[0]], dim=1), torch.cat([values, own[1]], dim=1)
            seen = pad(seen, (0, own[0].shape[1]), value=True)
        drafts, count, heads, size = queries.shape
        kv_heads = keys.shape[2]
        folded = queries.view(drafts, count, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
        out = scaled_dot_product_attention(
            folded.reshape(drafts, kv_heads, -1, size),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=seen[:, None, None],
        )
        out = out.view(drafts, kv_heads, heads // kv_heads, count, size).permute(0, 3, 1, 2, 4)
        return out.reshape(drafts, count, heads, size)
