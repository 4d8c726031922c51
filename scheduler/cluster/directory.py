"""A gateway's copy of the cluster's state: it places sessions from the copy, without a message to the cluster."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from opensled.core.errors import Unreachable, from_code
from scheduler.cluster.placement import STALE, Heartbeat
from scheduler.cluster.supervisor import ClusterState

log = logging.getLogger(__name__)

# Chosen: half a heartbeat; longer than a large model takes to load from a local disk; rare enough for a log.
POLL = 0.25  # seconds between two updates of the copy
GRACE = 60.0  # seconds after the start of a cluster in which one replica waits for the others
WARN_EVERY = 30.0  # seconds between two warnings that replicas are not up yet


class WatchedDirectory:
    """The Directory of a cluster. `ask` returns the state, or raises Unreachable; `clock` in seconds."""

    def __init__(self, ask: Callable[[], Awaitable[ClusterState]], clock: Callable[[], float]) -> None:
        self._ask, self._clock, self._asked = ask, clock, clock()
        self._known: dict[str, Heartbeat] = {}  # by id; `at` on our clock
        self._last = ClusterState([], {}, 0, 0.0)

    def replicas(self) -> Sequence[Heartbeat]:
        return tuple(self._known.values())

    async def ready(self) -> None:
        """Return when a replica is up; in a new cluster, when all replicas that start are up.

        Raises the reason why a replica does not start while none is up. One replica that stays away must not keep the
        gateway away.
        """
        warned = self._clock()
        while self._waits():
            await self.look()
            if not self._known:
                for code, reason in self._last.failures.values():
                    raise from_code(code, reason)
            if self._clock() - warned > WARN_EVERY:
                warned = self._clock()
                log.warning("%d of %d replicas are up; still waiting", len(self._known), self._last.wanted)
            await asyncio.sleep(POLL)
        self._warn_of_missing()

    def _waits(self) -> bool:
        missing = self._last.wanted - len(self._known) - len(self._last.failures)
        return not self._known or (missing > 0 and self._last.up_s < GRACE)

    def _warn_of_missing(self) -> None:
        if len(self._known) < self._last.wanted:
            log.warning("only %d of %d replicas are up", len(self._known), self._last.wanted)
        for name, (_, reason) in self._last.failures.items():
            log.warning("%s does not start: %s", name, reason)

    async def watch(self) -> None:
        """Keep the copy up to date until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL)

    async def look(self) -> None:
        """Update the copy once. While the scheduler is away, the last state counts as fresh: it will be back."""
        try:
            state = await self._ask()
        except Unreachable as error:
            log.info("no news of the replicas: %s", error)
            self._keep_fresh()
            return
        now = self._clock()
        heard = {beat.replica: beat._replace(at=now - age) for beat, age in state.beats}
        if state.up_s < STALE:  # a new scheduler has not heard of all replicas yet
            self._keep_fresh()
            heard = self._known | heard
        self._known, self._last, self._asked = heard, state, now

    def _keep_fresh(self) -> None:
        """Let the heartbeats be as old as at the last update."""
        now = self._clock()
        passed, self._asked = now - self._asked, now
        self._known = {name: beat._replace(at=beat.at + passed) for name, beat in self._known.items()}
