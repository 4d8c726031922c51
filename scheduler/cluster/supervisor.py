"""What the scheduler of a cluster does, whatever runs its replicas: keep as many as there should be, and know them.

Its state is soft: after a restart heartbeats bring it back, and replicas that live on are found again by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from opensled.errors import EngineError
from scheduler.cluster.placement import STALE, Heartbeat

log = logging.getLogger(__name__)

# Seconds before a dead replica is looked after; twice as long after each time that it did not start
PAUSE = 0.5
LONGEST_PAUSE = 30.0
SETTLE = 1.0  # seconds until every gateway has heard of a new replica, and is linked to it
LOOK = 0.1  # seconds between two looks at a replica that is to come back


@dataclass(frozen=True)
class ClusterSpec:
    """The replicas that a cluster is to have."""

    count: int
    # "module:callable" of (config, replica id, host, key) -> HostedServer, imported where the replica runs
    start: str
    config: dict[str, Any]
    cpus: float = 1.0  # of each
    gpus: float = 0.0
    networks: str = ""  # that Ray may listen on, as `ray_guard.networks` reads them

    @property
    def names(self) -> list[str]:
        return [f"replica-{number}" for number in range(self.count)]


class HostedServer(Protocol):
    """A server in its own threads, as `ClusterSpec.start` gives it. Its methods block; only `drain` blocks for long."""

    def heartbeat(self) -> Heartbeat:
        """What it says of itself; raises when it is broken for good."""

    def drain(self) -> None:
        """Hand every session over and stop serving."""


class ClusterState(NamedTuple):
    """What the scheduler knows."""

    beats: list[tuple[Heartbeat, float]]  # each with its age in seconds
    failures: dict[str, tuple[str, str]]  # replica -> code and reason why it did not start
    wanted: int  # replicas there should be
    up_s: float  # seconds since the scheduler started: a young one has not heard of everybody yet


class ReplicaRuntime(Protocol):
    """Whatever runs the replicas; each has a name of its own for ever, and many lives."""

    async def lifetime(self, name: str) -> None:
        """Start the replica of that name unless it is there; returns when it has died."""

    async def retire(self, name: str) -> None:
        """Drain it and end its process, if there is one."""


class ReplicaSupervisor:
    """Keeps `spec.count` replicas alive; `clock` in seconds."""

    def __init__(self, spec: ClusterSpec, actors: ReplicaRuntime, clock: Callable[[], float]) -> None:
        self._spec, self._actors, self._clock, self._since = spec, actors, clock, clock()
        self._beats: dict[str, Heartbeat] = {}  # by name, not by id; `at` on our clock
        self._lives: dict[str, str] = {}  # name -> id of the life whose end its keeper waits for
        self._failures: dict[str, tuple[str, str]] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def table(self) -> ClusterState:
        now = self._clock()
        fresh = [(beat, now - beat.at) for beat in self._beats.values() if now - beat.at < STALE]
        return ClusterState(fresh, dict(self._failures), self._spec.count, now - self._since)

    def tend(self) -> None:
        """Look after every replica from now on, also after one more restart of ours."""
        for name in () if self._stopped else self._spec.names:
            if name not in self._keepers:
                self._keepers[name] = asyncio.ensure_future(self._keep(name))

    def beat(self, name: str, beat: Heartbeat) -> None:
        """A replica lives; one that there should not be is let go."""
        self._failures.pop(name, None)
        self._lives.setdefault(name, beat.replica)
        self._beats[name] = beat._replace(at=self._clock())
        if name not in self._spec.names and name not in self._leaving:
            self._leaving[name] = asyncio.ensure_future(self._let_go(name))

    def failed(self, name: str, code: str, reason: str) -> None:
        """A replica did not start."""
        log.error("%s does not start: %s", name, reason)
        self._failures[name] = (code, reason)

    async def restart(self) -> None:
        """Drain and replace one replica after the other; EngineError at the first that does not come back."""
        for name in self._spec.names:
            before = self._beats.get(name)
            await self._let_go(name)  # its keeper starts another one
            await self._renewed(name, before)
            await asyncio.sleep(SETTLE)  # else those whom the next one sends away find nobody

    async def stop(self) -> None:
        """Drain and end every replica."""
        self._stopped = True
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*map(self._let_go, {*self._keepers, *self._beats}))

    async def _keep(self, name: str) -> None:
        """See to it that one replica lives, and forget its heartbeat the moment it dies."""
        pause = PAUSE
        while True:
            await self._actors.lifetime(name)
            self._forget(name, self._lives.pop(name, ""))
            pause = min(2 * pause, LONGEST_PAUSE) if name in self._failures else PAUSE
            await asyncio.sleep(pause)

    async def _let_go(self, name: str) -> None:
        before = self._beats.get(name)
        await self._actors.retire(name)
        self._forget(name, before.replica if before else "")
        self._leaving.pop(name, None)

    def _forget(self, name: str, life: str) -> None:
        """The heartbeat of a life that is over; the next one may have sent its first already."""
        if name in self._beats and self._beats[name].replica == life:
            del self._beats[name]

    async def _renewed(self, name: str, before: Heartbeat | None) -> None:
        while True:
            beat = self._beats.get(name)
            if beat is not None and (before is None or beat.replica != before.replica):
                return
            if name in self._failures:
                raise EngineError(f"{name} does not come back: {self._failures[name][1]}")
            await asyncio.sleep(LOOK)
