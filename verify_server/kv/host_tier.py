"""The second tier of KV memory: blocks of sequences that wait move to host memory, and come back ahead of their step.

Host memory is a pool of blocks like the engine's (pool.py): a full block of committed tokens is known there by the same
key, so it is copied once, however often its sequence leaves, and however many sequences begin with it. A sequence that
leaves holds host blocks instead of the engine's; what others hold, or what can still be found in the engine's memory,
stays there and is not copied back.

While a copy travels, nobody takes the blocks that it reads or writes, and its sequence is in no step. It may be
cancelled or preempted meanwhile: its blocks become free when the copy has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from hw_profiles.step_cost import HardwareProfile
from hw_profiles.swap_cost import SwapCost, recompute_s
from verify_server.kv.blocks import BlockTable
from verify_server.kv.copies import Copier, CopyThread, SwapStats
from verify_server.kv.pool import BlockPool, OutOfBlocks
from verify_server.kv.swap import Stage, Swap
from verify_server.session import Session

log = logging.getLogger(__name__)

# Seconds of copies that wait their turn to leave, at most: who waits there can do nothing, and is wanted again soon.
# Chosen: some steps of a large target.
QUEUE_S = 0.05
RETRY_S = 5.0  # after a copy that failed nothing leaves for so long (chosen)


class _Swapping(Protocol):
    """What of a `TargetEngine` the tier needs."""

    def swap_out(self, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]: ...

    def swap_in(self, host: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]: ...


class HostMemory(NamedTuple):
    """Host memory that an engine has reserved, and what copies cost in each direction."""

    num_blocks: int
    out: SwapCost
    back: SwapCost


@dataclass(frozen=True, eq=False)
class _Trip:
    """One copy that travels."""

    session: Session
    swap: Swap
    keys: Sequence[bytes]  # of the leading full blocks of committed tokens
    blocks: int  # that are copied
    free: int = 0  # blocks of the engine's memory that become free by it
    must: bool = False  # also if there is work for its sequence meanwhile


class HostTier:
    """Moves sequences between the engine's blocks and host memory; decides what pays, not who must go."""

    def __init__(
        self,
        engine: _Swapping,
        pool: BlockPool,
        memory: HostMemory,
        clock: Callable[[], float],
        landed: Callable[[], None],
        copiers: tuple[Copier, Copier] | None = None,
    ) -> None:
        """`pool`: of the engine's blocks. `landed` is called after each copy. `copiers`: out and back."""
        key = pool.prefixes.key if pool.prefixes is not None else b""
        self.pool = BlockPool(memory.num_blocks, pool.block_size, prefix_key=key)
        self.stats = SwapStats()
        self.out, self.back = memory.out, memory.back
        self._engine, self.own, self._clock, self._landed = engine, pool, clock, landed
        self._copiers = copiers or (CopyThread("kv-out"), CopyThread("kv-in"))
        self._away: WeakKeyDictionary[Session, Swap] = WeakKeyDictionary()  # in the order in which they left
        self._leaving: dict[_Trip, None] = {}
        self._coming: dict[_Trip, None] = {}
        self.displaced = 0  # sessions that lost what they had in host memory
        self._resumes = float("-inf")  # when something may leave again

    @property
    def travelling(self) -> int:
        """Copies under way."""
        return len(self._leaving) + len(self._coming)

    @property
    def is_busy(self) -> bool:
        """Whether so much is leaving that nothing more should."""
        return self.out.seconds(sum([trip.blocks for trip in self._leaving])) > QUEUE_S

    def becoming_free(self, tenant: str | None = None) -> int:
        """Of the engine's blocks, those that copies under way will free; `tenant`: of this one alone."""
        return sum([trip.free for trip in self._leaving if tenant in (None, trip.session.tenant)])

    # -- out ----------------------------------------------------------------------------------------------

    def pays(self, session: Session, profile: HardwareProfile) -> bool:
        """Whether to copy a session's KV out and back takes less time than to compute it again."""
        table, computed = session.sequence.table, session.sequence.computed
        stays = self._shared(table)
        copied = len(table.blocks) - len(self._known(table))
        move_s = self.out.seconds(copied) + self.back.seconds(len(table.blocks) - stays)
        return move_s < recompute_s(profile, stays * self.own.block_size, computed)

    def serves(self, sessions: Iterable[Session], profile: HardwareProfile) -> bool:
        """Whether anything is in host memory, or should be: if not, all goes on as without it."""
        if self.travelling or any(each.sequence.table.swap for each in sessions):
            return True
        largest = max(sessions, key=lambda each: len(each.sequence.table.blocks), default=None)
        return largest is not None and self.pays(largest, profile)

    def park(self, session: Session, must: bool = False) -> bool:
        """Begin to move a session out; False: host memory has no room for it, or a copy has failed just now.

        `must`: also if there is work for it, as an older one needs its blocks; else it stays if work comes meanwhile.
        """
        table = session.sequence.table
        assert table.swap is None and not session.in_step, "a step writes in these blocks"
        known = self._known(table)
        copied = [number for number in range(len(table.blocks)) if number not in known]
        if self._clock() < self._resumes or self._over_budget(table, len(copied)):
            return False
        for block in known.values():
            self.pool.share(block, table.tenant)
        try:
            held = dict(zip(copied, self._take(len(copied), table.tenant)))
        except OutOfBlocks:
            self.pool.give_back(list(known.values()), table.tenant)
            return False
        host = [held.get(number, known.get(number, -1)) for number in range(len(table.blocks))]
        table.swap = Swap(self.pool, table.tenant, host, Stage.LEAVING, len(host))
        free = sum([self.own.holders(block) == 1 for block in table.blocks])
        trip = _Trip(session, table.swap, tuple(table.settled_keys), len(copied), free, must)
        self._leaving[trip] = None
        work = partial(self._engine.swap_out, [table.blocks[number] for number in copied])
        self._start(0, trip, partial(work, [host[number] for number in copied]), self._left)
        return True

    def _left(self, trip: _Trip, error: Exception | None, seconds: float) -> None:
        del self._leaving[trip]
        swap, table = trip.swap, trip.session.sequence.table
        if error is not None:
            self._failed(error, "out")
            self._resumes = self._clock() + RETRY_S
        else:
            self._count("out", trip, seconds)
            for block, key in zip(swap.host, trip.keys):
                self.pool.publish(block, key)
        if swap.given_up:
            self.own.give_back(swap.blocks, swap.tenant)
            self.pool.give_back(swap.host, swap.tenant)
        elif error is not None or not (trip.must or trip.session.rests):
            trip.session.sequence.arrive()  # it is there all the same
            self.pool.give_back(swap.host, swap.tenant)
        else:
            table.leave()
            swap.stage = Stage.AWAY
            swap.trim()
            self._away[trip.session] = swap
        self._landed()

    # -- back ---------------------------------------------------------------------------------------------

    def fetch(self, session: Session) -> None:
        """Begin to move a session back. Changes nothing when it raises OutOfBlocks or OverBudget."""
        table = session.sequence.table
        swap = table.swap
        assert swap is not None and swap.stage is Stage.AWAY, "only what is away comes back"
        missing = table.come_back(len(swap.host))
        swap.stage = Stage.COMING
        self._away.pop(session, None)
        trip = _Trip(session, swap, (), len(missing))
        self._coming[trip] = None
        work = partial(self._engine.swap_in, [swap.host[number] for number in missing])
        self._start(1, trip, partial(work, [table.blocks[number] for number in missing]), self._came)

    def _came(self, trip: _Trip, error: Exception | None, seconds: float) -> None:
        del self._coming[trip]
        swap, session = trip.swap, trip.session
        if error is not None:
            self._failed(error, "in")
        else:
            self._count("in", trip, seconds)
        if swap.given_up:
            self.own.give_back(swap.blocks, swap.tenant)
        elif error is not None:  # what it copied to is unknown: computed again
            session.sequence.table.swap = None
            session.forget_kv()
        else:
            self.stats.restored += trip.blocks * self.own.block_size
            session.sequence.arrive()
        self.pool.give_back(swap.host, swap.tenant)
        self._landed()

    # -- both ---------------------------------------------------------------------------------------------

    def withdraw(self, table: BlockTable) -> None:
        """The KV of this sequence may be wrong: make what was copied of it unfindable."""
        self.pool.withdraw(list(self._known(table).values()))

    def close(self) -> None:
        for copier in self._copiers:
            copier.close()

    def _start(
        self,
        direction: int,
        trip: _Trip,
        begin: Callable[[], Callable[[], None]],
        end: Callable[[_Trip, Exception | None, float], None],
    ) -> None:
        try:
            work = begin() if trip.blocks else _nothing
        except Exception as error:
            work = partial(_raise, error)
        self._copiers[direction].start(work, partial(end, trip))

    def _take(self, count: int, tenant: str) -> list[int]:
        """Host blocks; for a session without a reader, or of a tenant above its share, there may be no more room then.
        Raises OutOfBlocks."""
        away = [session for session, swap in self._away.items() if session.sequence.table.swap is swap]
        greedy = self.pool.is_over_share(tenant)
        for session in sorted(away, key=lambda one: one.has_reader):
            if count <= self.pool.num_free:
                break
            over = self.pool.is_over_share(session.tenant) and not greedy
            if not session.has_reader or over:
                session.forget_kv()
                self.displaced += 1
        return self.pool.take(count, tenant)

    def _known(self, table: BlockTable) -> dict[int, int]:
        """By number in the table, the host blocks that hold the same already."""
        found = {number: self.pool.find(key) for number, key in enumerate(table.settled_keys)}
        return {number: block for number, block in found.items() if block is not None}

    def _shared(self, table: BlockTable) -> int:
        """Leading blocks that other sessions hold as well."""
        numbered = enumerate(table.blocks)
        return next((number for number, block in numbered if self.own.holders(block) == 1), len(table.blocks))

    def _over_budget(self, table: BlockTable, more: int) -> bool:
        """A tenant has in host memory at most as much as it may have in the engine's."""
        return bool(table.budget) and self.pool.held(table.tenant) + more > table.budget

    def _count(self, direction: str, trip: _Trip, seconds: float) -> None:
        if trip.blocks:
            cost = self.out if direction == "out" else self.back
            cost.observe(trip.blocks, seconds)
            self.stats.copied(direction, trip.blocks * cost.block_bytes, seconds)

    def _failed(self, error: Exception, direction: str) -> None:
        self.stats.failed += 1
        log.error("a copy of KV blocks %s failed; texts go on", direction, exc_info=error)


def _nothing() -> None:
    """All is there already."""


def _raise(error: Exception) -> None:
    raise error
