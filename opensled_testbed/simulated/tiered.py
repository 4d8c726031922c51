"""The simulated server with KV memory: the product's blocks, preemption and host tier; copies take what a bus says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hw_profiles.swap_cost import SwapCost
from opensled.messages import Draft
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.server import Reader, SimulatedServer
from scheduler.plan import BatchPlan
from verify_server.kv.blocks import BlockTable
from verify_server.kv.copies import Done
from verify_server.kv.host_tier import HostMemory, HostTier
from verify_server.kv.pool import BlockPool
from verify_server.kv.preemption import KVPreemptor
from verify_server.kv.tending import tend
from verify_server.session import Session
from verify_server.step_item import StepItem

BLOCK_SIZE = 16  # tokens of a KV block


@dataclass(frozen=True)
class Memory:
    """KV memory of a server, in tokens; `host_tokens`: 0 = no second tier. `bus_gb_s`: of copies, each way."""

    tokens: int
    token_bytes: float
    host_tokens: int = 0
    bus_gb_s: float = 55.0

    @property
    def block_bytes(self) -> int:
        return int(self.token_bytes * BLOCK_SIZE)

    def host(self) -> HostMemory | None:
        """As after a probe that was exact."""
        if not self.host_tokens:
            return None
        out, back = (SwapCost(self.block_bytes, self.bus_gb_s * 1e9) for _ in range(2))
        return HostMemory(self.host_tokens // BLOCK_SIZE, out, back)


@dataclass(frozen=True)
class _Copy:
    """Stands for the work of a copy."""

    seconds: float

    def __call__(self) -> None:
        """Nothing: there is no KV."""


class _Bus:
    """Both what the tier asks of an engine, and one copier for each direction."""

    def __init__(self, memory: Memory) -> None:
        self._block_s = memory.block_bytes / (memory.bus_gb_s * 1e9)

    def swap_out(self, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]:
        return _Copy(len(blocks) * self._block_s)

    def swap_in(self, host: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        return _Copy(len(blocks) * self._block_s)


class _Copies:
    """A `Copier` of one direction: one copy behind the other."""

    def __init__(self, events: Events) -> None:
        self._events, self._free_at = events, 0.0

    def start(self, work: Callable[[], None], done: Done) -> None:
        seconds = work.seconds if isinstance(work, _Copy) else 0.0
        self._free_at = max(self._events.now, self._free_at) + seconds
        self._events.at(self._free_at, self._end, (done, seconds))

    def _end(self, ended: tuple[Done, float]) -> None:
        done, seconds = ended
        done(None, seconds)

    def close(self) -> None: ...


class TieredServer(SimulatedServer):
    """A `SimulatedServer` whose sessions hold KV blocks."""

    def __init__(self, events: Events, memory: Memory, *given: Any, **options: Any) -> None:
        """What follows `memory` is what `SimulatedServer` takes behind the events."""
        super().__init__(events, *given, **options)
        self.pool = BlockPool(memory.tokens // BLOCK_SIZE, BLOCK_SIZE)
        host, bus = memory.host(), _Bus(memory)
        copies = _Copies(events), _Copies(events)
        self.tier = HostTier(bus, self.pool, host, lambda: events.now, self._landed, copies) if host else None
        self.preempted = 0
        self._left_out: frozenset[int] = frozenset()
        self._short: frozenset[int] = frozenset()

    def submit(self, arrived: tuple[Session, Draft]) -> None:
        super().submit(arrived)
        if arrived[0].sequence.table.swap is not None:
            self._tend()

    def _session(self, reader: Reader) -> Session:
        session = super()._session(reader)
        session.sequence.table = BlockTable(self.pool)
        return session

    def _plan(self, _: Any) -> None:
        self._tend()
        super()._plan(_)

    def _work(self, plan: BatchPlan, now: float) -> list[StepItem]:
        step = KVPreemptor(self._sessions, self.pool, now, self.tier, self._profile)
        work = step.fit(plan.slices, self._left_out)
        self._left_out, self._short = step.left_out, step.short
        self.preempted += step.preempted
        return work

    def _tend(self) -> None:
        if self.tier is not None:
            tend(self.tier, self._sessions, self._short, self._profile, self._events.now)

    def _landed(self) -> None:
        self._tend()
        self._wake()

    def _forget(self, session: Session) -> None:
        session.forget_kv()
        super()._forget(session)
