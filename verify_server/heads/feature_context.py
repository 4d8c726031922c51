"""What an EAGLE-3 head knows of texts, in the target's KV blocks: features of each row, and its own keys and values.

Features follow from hidden states alone: they are written for every row that a step computes, and are rolled back,
shared and put in order after a tree as the target's KV is. A key is another matter, for it also depends on the token
*after* its features' row, which is known only when it was decided. So keys and values are written when a draft is asked
for, from the features and the text, and which text's they are is kept by block (`WrittenKV`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from verify_server.drafting.base import Ask
from verify_server.drafting.written_kv import WrittenKV
from verify_server.engine.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.heads.base import Attention
from verify_server.heads.context import attending
from verify_server.heads.eagle3 import Eagle3Head

log = logging.getLogger(__name__)

FEATURES, ROWS = 0, 0  # layers of the two memories
# Newest rows of a text that a head attends to: bounds what a draft costs beside a long prompt. EAGLE-3's authors
# trained on texts of this length.
SEEN = 2048
# Tokens of long texts that are read before one draft, for all sessions together, and how many are read at once in any
# case: a long prompt must not delay the tokens of all others (chosen).
READ, NEAR = 512, 32


class Reading(NamedTuple):
    """Of one text."""

    start: int  # its rows before this one are there
    rows: int  # so many from there on are read now
    unread: int  # and so many are left


class FeatureContext:
    """`verify_server.engine.tap.RowReader` for one head."""

    def __init__(
        self, head: Eagle3Head, taps: tuple[int, ...], table: Tensor, blocks: int, shared: bool
    ) -> None:
        """`table`: the embedding [vocabulary, d] that the head reads. `shared`: see `WrittenKV`."""
        self.taps = taps
        self._head, self._table = head, table
        self._features, self._memory = KVMemory(blocks), KVMemory(blocks)
        self._written = WrittenKV(BLOCK_SIZE, shared)
        self._allocate()

    def read(self, hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        """The target has computed rows with these tapped states [n, taps, d]."""
        try:
            features = self._head.features(hidden)
        except Exception:
            log.exception("the eagle3 head failed on %d rows; drafts behind them will be poor", len(slots))
            features = hidden.new_zeros(len(slots), self._head.shape.size)
        self._features.write(FEATURES, slots, features[:, None], features[:, None, :0])

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """See `KVMemory.move`. What is moved are rows behind a text, of which there are no keys."""
        self._features.move(sources, targets)

    def forget(self, session: int) -> None:
        """The session is over."""
        self._written.forget(session)

    def catch_up(self, asks: Sequence[Ask]) -> list[Reading]:
        """Keys and values of what is new in each text, of long texts a piece."""
        left, readings = READ, []
        for ask in asks:
            start = self._written.computed(ask)
            new = ask.length - 1 - start
            count = new if new <= NEAR else min(new, left)
            left -= count if new > NEAR else 0
            readings.append(Reading(start, count, new - count))
        try:
            self._keep(asks, readings)
        except Exception:
            for ask in asks:  # it is unknown what was written
                for block in ask.blocks:
                    self._written.free(block)
            raise
        for ask, (start, count, _) in zip(asks, readings):
            self._written.write(ask, start, ask.tokens[start : start + count])
        return readings

    def newest(self, asks: Sequence[Ask]) -> Tensor:
        """Features [B, d] of the last row of each text that is computed; its newest token was decided by that row."""
        return self._fetched([_slot(ask, ask.length - 2) for ask in asks])

    def attention(self, asks: Sequence[Ask]) -> Attention:
        """Over the rows of each text before its newest token."""
        blocks, rows = [ask.blocks for ask in asks], [ask.length - 2 for ask in asks]
        return attending(self._memory, ROWS, blocks, rows, self._table.device, SEEN, least=1)

    def embedded(self, ids: Tensor) -> Tensor:
        """[n, d]: rows of the matrix itself; the embedding of some targets (Gemma) also scales."""
        return embedding(ids, self._table)

    def _keep(self, asks: Sequence[Ask], readings: Sequence[Reading]) -> None:
        # Nothing stands before a text, so its first token has no row.
        new = [
            (ask, row)
            for ask, (start, count, _) in zip(asks, readings)
            for row in range(max(1, start), start + count)
        ]
        if not new:
            return
        device = self._table.device
        ids, positions, slots = (
            torch.tensor(each, device=device)
            for each in zip(*((ask.tokens[row], row, _slot(ask, row)) for ask, row in new))
        )
        features = self._fetched([_slot(ask, row - 1) for ask, row in new])
        keys, values = self._head.keys_values(self.embedded(ids), features, positions)
        self._memory.write(ROWS, slots, keys, values)

    def _fetched(self, slots: Sequence[int]) -> Tensor:
        found = self._features.fetch(FEATURES, torch.tensor(slots, device=self._table.device))[0]
        return found[:, 0]

    @torch.inference_mode()
    def _allocate(self) -> None:
        """At once, so that a lack of memory shows at load."""
        shape, first = self._head.shape, torch.zeros(1, dtype=torch.int64, device=self._table.device)
        self.read(self._table.new_zeros(1, shape.taps, shape.size), first, first)
        empty = self._table.new_zeros(1, shape.kv_heads, shape.head_size)
        self._memory.write(ROWS, first, empty, empty)


def _slot(ask: Ask, row: int) -> int:
    return ask.blocks[row // BLOCK_SIZE] * BLOCK_SIZE + row % BLOCK_SIZE
