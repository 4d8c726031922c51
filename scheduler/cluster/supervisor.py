"""What the scheduler of a cluster does, whatever runs its replicas: it keeps the wanted number alive and knows them.

Its state is soft: after a restart heartbeats bring it back, and replicas that live on are found again by name.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from opensled.core.errors import EngineError
from scheduler.cluster.placement import STALE, Heartbeat

log = logging.getLogger(__name__)

# Seconds, chosen: pauses before a dead replica is started again double with each failed start, so that a broken
# machine is not kept busy; SETTLE is four updates of a gateway's copy (`directory.POLL`).
PAUSE, LONGEST_PAUSE = 0.5, 30.0
SETTLE = 1.0  # until every gateway has heard of a new replica, and is linked to it
LOOK = 0.1  # between two looks for a replica that is to come back


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
    """A server in threads of its own, as `ClusterSpec.start` makes it. Its methods block, `drain` for long."""

    def heartbeat(self) -> Heartbeat:
        """Its present state; raises when the server is broken for good."""

    def drain(self) -> None:
        """Hand every session over and stop serving."""


class ClusterState(NamedTuple):
    """What the scheduler knows."""

    beats: list[tuple[Heartbeat, float]]  # each with its age in seconds
    failures: dict[str, tuple[str, str]]  # name of a replica -> code and reason why it did not start
    wanted: int  # replicas there should be
    up_s: float  # seconds since the scheduler started: a new one has not heard of all replicas yet


class ReplicaRuntime(Protocol):
    """What runs the replicas. A replica keeps its name over all restarts, and gets a new id with each."""

    async def lifetime(self, name: str) -> None:
        """Start the replica of that name unless it runs; returns when it has died."""

    async def retire(self, name: str, serves: bool) -> None:
        """Drain it if it `serves`, and end its process, if there is one."""


class ReplicaSupervisor:
    """Keeps `spec.count` replicas alive; `clock` in seconds."""

    def __init__(self, spec: ClusterSpec, runtime: ReplicaRuntime, clock: Callable[[], float]) -> None:
        self._spec, self._runtime, self._clock, self._since = spec, runtime, clock, clock()
        self._beats: dict[str, Heartbeat] = {}  # by name, not by id; `at` on our clock
        self._ids: dict[str, str] = {}  # name -> id of the running replica
        self._failures: dict[str, tuple[str, str]] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def state(self) -> ClusterState:
        now = self._clock()
        fresh = [(beat, now - beat.at) for beat in self._beats.values() if now - beat.at < STALE]
        return ClusterState(fresh, dict(self._failures), self._spec.count, now - self._since)

    def tend(self) -> None:
        """Keep every replica alive from now on; does nothing the second time."""
        for name in () if self._stopped else self._spec.names:
            if name not in self._keepers:
                self._keepers[name] = asyncio.ensure_future(self._keep(name))

    def beat(self, name: str, beat: Heartbeat) -> None:
        """A replica lives; one that the spec does not name is retired."""
        self._failures.pop(name, None)
        self._ids.setdefault(name, beat.replica)
        self._beats[name] = beat._replace(at=self._clock())
        if name not in self._spec.names and name not in self._leaving:
            self._leaving[name] = asyncio.ensure_future(self._retire(name))

    def report_failure(self, name: str, code: str, reason: str) -> None:
        """A replica did not start."""
        log.error("%s does not start: %s", name, reason)
        self._failures[name] = (code, reason)

    async def restart(self) -> None:
        """Drain and replace one replica after the other; EngineError at the first that does not come back."""
        for name in self._spec.names:
            before = self._beats.get(name)
            await self._retire(name)  # its keeper starts another one
            await self._wait_for_renewal(name, before)
            await asyncio.sleep(SETTLE)  # else clients that the next replica hands over find no other

    async def stop(self) -> None:
        """Drain and end every replica."""
        self._stopped = True
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*map(self._retire, {*self._keepers, *self._beats}))

    async def _keep(self, name: str) -> None:
        """Keep one replica alive, and forget its heartbeat when it dies."""
        pause = PAUSE
        while True:
            await self._runtime.lifetime(name)
            self._forget(name, self._ids.pop(name, ""))
            pause = min(2 * pause, LONGEST_PAUSE) if name in self._failures else PAUSE
            await asyncio.sleep(pause)

    async def _retire(self, name: str) -> None:
        before = self._beats.get(name)
        await self._runtime.retire(name, before is not None)
        self._forget(name, before.replica if before else "")
        self._leaving.pop(name, None)

    def _forget(self, name: str, replica: str) -> None:
        """The heartbeat of a replica that has ended; the next one of that name may have sent its first already."""
        if name in self._beats and self._beats[name].replica == replica:
            del self._beats[name]

    async def _wait_for_renewal(self, name: str, before: Heartbeat | None) -> None:
        while True:
            beat = self._beats.get(name)
            if beat is not None and (before is None or beat.replica != before.replica):
                return
            if name in self._failures:
                raise EngineError(f"{name} does not come back: {self._failures[name][1]}")
            await asyncio.sleep(LOOK)
