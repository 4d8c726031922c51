"""The KV of a draft model beside the target, which takes no memory from users.

Its blocks are guests: the target's pool lends those that no sequence needs, and takes them back before it evicts a
prefix or preempts a sequence. An engine that cannot share the target's memory has blocks of its own instead. Either
way a sequence has blocks only once it is drafted for; where there are none left, it is not drafted for.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count

from opensled.core.protocol import common_prefix
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.drafter import DrafterMemory
from verify_server.round.sequence import Sequence as Text


class GuestPool(BlockPool):
    """The KV blocks of one draft model, which have the numbers of the blocks that are lent."""

    def __init__(
        self,
        host: BlockPool,
        block_size: int,
        own: int = 0,
        shared: bool = True,
        on_free: Callable[[Sequence[int]], object] | None = None,
        on_rest: Callable[[Sequence[int]], object] | None = None,
    ) -> None:
        """`block_size`: tokens of the draft model in one block. `own`: blocks of its own, 0 = `host` lends them.
        `shared`: sequences of a tenant find what was computed for others; else each finds its own alone."""
        super().__init__(own or host.num_blocks, block_size, on_free, secrets.token_bytes(32), on_rest)
        self._host, self._shared = BlockPool(0, 1) if own else host, shared
        self._unused = list(range(own))
        self._places = count()
        # Those with blocks; first the one drafted for longest ago
        self.guests: OrderedDict[Guest, None] = OrderedDict()
        self._host.reclaim = self._give_up

    @property
    def num_free(self) -> int:
        """See `BlockPool`; with all that would be lent."""
        return super().num_free + self._host.num_free - self._host.lent

    def place(self, tenant: str) -> Guest:
        """The KV of a new sequence. It follows from the ids of the text alone: a draft model sees no pictures."""
        return Guest(self, BlockTable(self, tenant if self._shared else str(next(self._places))))

    def take(self, count: int, tenant: str = "") -> list[int]:
        """See `BlockPool`; what others find in the target's blocks is lost last."""
        self._unused += self._host.lend(count - len(self._unused), findable=False)
        self._unused += self._host.lend(count - super().num_free, findable=True)
        return super().take(count, tenant)

    def _give_up(self) -> int:
        """A block that a sequence needs."""
        while not self._unused and not self._cached:
            next(iter(self.guests)).clear()
        self._host.lent -= 1
        return self._unused.pop() if self._unused else self._evict()


class Guest(DrafterMemory):
    """What a draft model has computed of one sequence."""

    def __init__(self, pool: GuestPool, table: BlockTable) -> None:
        self._pool, self._table = pool, table
        self.read = 0  # positions of the text that are computed,
        self._drafted: tuple[int, ...] = ()  # and the ids computed behind them

    def unread(self, length: int) -> int | None:
        """See `DrafterMemory`."""
        return length - self.read if self._table.reach() >= length else None

    def prepare(self, text: Text, most: int) -> tuple[tuple[int, ...], int] | None:
        """See `DrafterMemory`; the draft has blocks as far as there is room."""
        computed = self._count_computed(text)
        if computed < text.confirmed:
            computed = self._table.adopt(text.tokens, computed)
        if self._table.reach() < len(text):
            self.clear()
            return None
        self._table.grow(min(self._table.reach(), len(text) + most))
        self._pool.guests[self] = None
        self._pool.guests.move_to_end(self)
        self.read, self._drafted = computed, ()
        return tuple(self._table.blocks), computed

    def _count_computed(self, text: Text) -> int:
        """Positions that are computed in its blocks; the last one is computed again. Others may find them."""
        if not self._table.blocks:
            return 0
        computed, tokens = min(self.read, text.confirmed), text.tokens
        if computed == self.read:
            computed += common_prefix(self._drafted, tokens[computed : computed + len(self._drafted)])
        computed = min(computed, len(text) - 1)
        if computed < text.confirmed:
            self._table.publish(tokens, computed)
        return computed

    def write(self, read: int, drafted: tuple[int, ...]) -> None:
        """See `DrafterMemory`."""
        self.read, self._drafted = self.read + read, drafted

    def rest(self, text: Text) -> None:
        """See `DrafterMemory`; others may have the blocks. Until then, what is in them is found again."""
        read, _ = self.read, self._count_computed(text)
        self.clear()
        self.read = read

    def clear(self) -> None:
        """See `DrafterMemory`; what the sequence has in common with others may be found again."""
        self._table.clear()
        self.read, self._drafted = 0, ()
        self._pool.guests.pop(self, None)
