"""The KV of a draft model beside the target, which takes no memory from users.

Its blocks are guests: the target's pool lends those that no sequence needs, and takes them back before it evicts a
prefix or preempts a sequence. An engine that cannot share the target's memory has blocks of its own instead. Either
way a sequence has blocks only once it is drafted for; where there are none left, it is not drafted for.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from opensled.core.protocol import common_prefix
from verify_server.kv.blocks import BlockPool, BlockTable


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
        # Those with blocks: first those that rest, then the others by the time when they were drafted for
        self._guests: OrderedDict[DraftKV, None] = OrderedDict()
        self._host.reclaim = self._give_up

    @property
    def num_free(self) -> int:
        """See `BlockPool`; with all that would be lent."""
        return super().num_free + self._host.num_free - self._host.lent

    def place(self, tenant: str, content: Mapping[int, int]) -> DraftKV:
        """The KV of a new sequence; see `BlockTable`."""
        owner = tenant if self._shared else str(next(self._places))
        return DraftKV(self, BlockTable(self, owner, content=content))

    def take(self, count: int, tenant: str = "") -> list[int]:
        """See `BlockPool`; what others find in the target's blocks is lost last."""
        self._unused += self._host.lend(count - len(self._unused), findable=False)
        self._unused += self._host.lend(count - super().num_free, findable=True)
        return super().take(count, tenant)

    def enter(self, guest: DraftKV) -> None:
        """The guest is drafted for."""
        self._guests[guest] = None
        self._guests.move_to_end(guest)

    def rest(self, guest: DraftKV) -> None:
        """The guest is not drafted for, for its drafts do not pay: it makes room for others."""
        if guest in self._guests:
            self._guests.move_to_end(guest, last=False)

    def leave(self, guest: DraftKV) -> None:
        """The guest has no blocks."""
        self._guests.pop(guest, None)

    def clear_resting(self) -> bool:
        """Whether there was a guest that rests, which has no blocks any more."""
        first = next(iter(self._guests), None)
        if first is None or not first.rests:
            return False
        first.clear()
        return True

    def _give_up(self) -> int:
        """A block that a sequence needs."""
        while not self._unused and not self._cached:
            next(iter(self._guests)).clear()
        return self._unused.pop() if self._unused else self._evict()


class DraftKV:
    """What a draft model has computed of one sequence."""

    def __init__(self, pool: GuestPool, table: BlockTable) -> None:
        self._pool, self._table = pool, table
        self.read = 0  # positions of the text that are computed,
        self._drafted: tuple[int, ...] = ()  # and the ids computed behind them
        self.rests = False

    def has_room(self, length: int) -> bool:
        """Whether there seems to be room for the KV of so many positions."""
        return self._table.reach() >= length

    def prepare(self, tokens: Sequence[int], confirmed: int, most: int) -> tuple[tuple[int, ...], int]:
        """Blocks for the text and `most` tokens of a draft, as far as there is room; positions that are computed in
        them, never the last one. No blocks: there is no room for the text. `confirmed`: tokens that are final."""
        length, computed = len(tokens), min(self.read, confirmed)
        if computed == self.read:
            computed += common_prefix(self._drafted, tokens[computed : computed + len(self._drafted)])
        computed = min(computed, length - 1)
        if computed < confirmed:
            self._table.publish(tokens, computed)
            computed = self._table.adopt(tokens, computed)
        self.rests = False
        self._pool.enter(self)
        while not self.has_room(length + most) and self._pool.clear_resting():
            pass
        if not self.has_room(length):
            self.clear()
            return (), 0
        self._table.grow(min(self._table.reach(), length + most))
        self.read, self._drafted = computed, ()
        return tuple(self._table.blocks), computed

    def write(self, read: int, drafted: tuple[int, ...]) -> None:
        """In the blocks that were prepared, `read` more positions of the text are computed, and `drafted` after it."""
        self.read, self._drafted = self.read + read, drafted

    def rest(self) -> None:
        """See `GuestPool`."""
        self.rests = True
        self._pool.rest(self)

    def clear(self) -> None:
        """Give all blocks back; what the sequence has in common with others may be found again."""
        self._table.clear()
        self.read, self._drafted = 0, ()
        self._pool.leave(self)
