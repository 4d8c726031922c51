"""A target of a soak that is a cluster of replicas behind a gateway."""

import contextlib
import os
import time
from collections.abc import Sequence

from lab.testbed.processes import Process
from lab.testbed.replica_cluster import READY_S, REPLICA, SCHEDULER, ReplicaCluster
from lab.testbed.soak.kinds import TargetKind
from lab.testbed.soak.target import ANY_PORT, Part, Place, SoakTarget
from opensled.core.errors import OpenSledError

GATEWAY, REPLICA_ROLE, SCHEDULER_ROLE = "gateway", "replica", "scheduler"
ROLL = "replicas, one after another"
RAY_STARTS = 4  # before a soak gives up


class ClusterTarget(SoakTarget):
    """Replicas on a Ray of their own, behind a gateway."""

    main = GATEWAY

    def __init__(self, kind: TargetKind, place: Place) -> None:
        super().__init__(kind, place)
        self.parts[GATEWAY] = Part(self._gateway)

    def _new_cluster(self) -> ReplicaCluster:
        """One that runs."""
        return ReplicaCluster(
            self.kind.replicas,
            proxy=self.kind.proxy,
            flags=("--tokens", str(self.place.tokens), "--log-level", "info", *self.flags),
            environment=self.environment,
            log=self.place.folder / "gateway.log",
        ).__enter__()

    def _gateway(self, listen: str) -> Process:
        if listen == ANY_PORT:
            self._cluster = self._first_cluster()
        else:
            self._cluster.start_gateway()
        return self._cluster.gateway

    def _first_cluster(self) -> ReplicaCluster:
        """`ray start` gives up after 30 s, which a busy machine may need."""
        for _ in range(RAY_STARTS - 1):
            with contextlib.suppress(OpenSledError):
                return self._new_cluster()
        return self._new_cluster()

    def pids(self, role: str) -> list[int]:
        """See `SoakTarget`; one replica of several, all of them for ROLL."""
        if role == SCHEDULER_ROLE:
            return self._cluster.pids(SCHEDULER)
        if role in (REPLICA_ROLE, ROLL):
            found = self._cluster.pids(REPLICA)
            return found if role == ROLL else found[:1]
        return super().pids(role)

    def end(self, role: str, number: int) -> None:
        """See `SoakTarget`; the cluster itself brings its actors back."""
        if role in self.parts:
            return super().end(role, number)
        before = self.pids(role)
        if role == ROLL:
            self._cluster.roll()
        else:
            for pid in before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._await_others(role, before)

    def _await_others(self, role: str, before: Sequence[int]) -> None:
        """Until other processes have the places of these."""
        title = SCHEDULER if role == SCHEDULER_ROLE else REPLICA
        count = 1 if role == SCHEDULER_ROLE else self.kind.replicas
        deadline = time.monotonic() + READY_S
        while len(set(self._cluster.pids(title)) - set(before)) < count:
            if time.monotonic() > deadline:
                raise OpenSledError(f"{self.name}: no new {role} after {READY_S:g} s")
            time.sleep(0.2)

    def stop(self) -> None:
        """See `SoakTarget`; Ray's processes end with it."""
        super().stop()
        if self.parts[GATEWAY].process is not None:  # else the cluster did not start, and cleaned up
            self._cluster.__exit__()
