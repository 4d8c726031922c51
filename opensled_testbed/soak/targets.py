"""The kinds of target that a soak breaks: one server of each engine and policy, and clusters with their gateways.

Methods block, for seconds or longer where processes start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opensled.errors import OpenSledError
from opensled_testbed.processes import Process, free_port
from opensled_testbed.replica_cluster import READY_S, REPLICA, SCHEDULER, ReplicaCluster
from opensled_testbed.soak.clocks import StepClock

ANY_PORT = "127.0.0.1:0"
EDGE, SERVER, GATEWAY, REPLICA_ROLE, SCHEDULER_ROLE = "edge", "server", "gateway", "replica", "scheduler"
ROLL = "replicas, one after another"
RAY_STARTS = 4  # before a soak gives up


@dataclass(frozen=True)
class TargetKind:
    """What is served, and how."""

    name: str
    engine: str  # "torch" or "llamacpp"
    flags: tuple[str, ...] = ()
    replicas: int = 0
    proxy: bool = False
    edge: bool = False  # a real `opensled edge` is among its devices
    http: bool = False  # a client without a device is among its readers

    @property
    def exact(self) -> bool:
        """Whether the same text comes out whatever else is computed beside it."""
        return self.engine == "torch"


# Little KV memory, so that sequences push each other out all the time.
_TIGHT = ("--kv-tokens", "1024")
KINDS = (
    TargetKind(
        "torch-goodput",
        "torch",
        ("--policy", "goodput", "--drafter", "cacheback", *_TIGHT),
        edge=True,
        http=True,
    ),
    TargetKind("torch-fcfs", "torch", ("--policy", "fcfs", "--draft-wait", "0.25", "--drafter", "model")),
    TargetKind("torch-static", "torch", ("--policy", "static")),
    TargetKind("torch-head", "torch", ("--drafter", "ctc", *_TIGHT)),
    TargetKind("llamacpp-goodput", "llamacpp", ("--policy", "goodput", "--drafter", "lookup"), http=True),
    TargetKind("replicas", "torch", ("--drafter", "cacheback"), replicas=2, http=True),
    TargetKind("replicas-proxy", "torch", ("--drafter", "specformer"), replicas=2, proxy=True, edge=True),
)


@dataclass(frozen=True)
class Place:
    """Where a target runs: its folder for logs and files, the clock of its processes, and who may ask it."""

    folder: Path
    clock: StepClock
    tokens: Path


class Part:
    """One process of a target that can end and be started again, on the same port."""

    def __init__(self, start: Callable[[str], Process]) -> None:
        """`start`: at HOST:PORT; returns when it listens."""
        self._start, self.address = start, ANY_PORT
        self.process: Process | None = None

    def start(self) -> None:
        self.process = self._start(self.address)
        self.address = self.process.address

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.process.pid

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.process.poll() is not None

    def end(self, number: int) -> int:
        """SIGKILL or SIGTERM, and wait; the exit code."""
        assert self.process is not None
        return self.process.kill() if number == signal.SIGKILL else self.process.stop()


class SoakTarget(ABC):
    """One target with the processes that belong to it."""

    main: str  # name of the part that devices ask

    def __init__(self, kind: TargetKind, place: Place) -> None:
        self.kind, self.place = kind, place
        self.parts: dict[str, Part] = {}
        self.http = f"127.0.0.1:{free_port()}"  # of its own API
        self._one_at_a_time = threading.RLock()
        self._over = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Those of its kind, and of its own API."""
        return (*self.kind.flags, *(("--http", self.http) if self.kind.http else ()))

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def address(self) -> str:
        return self.parts[self.main].address

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Processes start and end in here; once all is stopped nothing starts any more."""
        with self._one_at_a_time:
            if self._over:
                raise OpenSledError(f"{self.name} is stopped")
            yield

    def start(self) -> None:
        with self._at_work():
            self.parts[self.main].start()

    def add_edge(self, server: str, token: Path) -> Part:
        """A real device that asks `server`; raises OpenSledError if it does not start."""
        folder = self.place.folder

        def start(listen: str) -> Process:
            flags = [
                *("--server", server, "--token-file", str(token), "--http", listen, "--threads", "1"),
                *("--personal-table", str(folder / "personal.table"), "--cache-dir", str(folder / "cache")),
                *("--log-level", "info"),
            ]
            return self._listening(["edge", *flags], EDGE)

        part = self.parts[EDGE] = Part(start)
        with self._at_work():
            part.start()
        return part

    def _listening(self, arguments: Sequence[str], name: str) -> Process:
        environment = self.place.clock.environment
        process = Process(
            arguments, isolated=True, environment=environment, log=self.place.folder / f"{name}.log"
        )
        try:
            process.wait_ready(READY_S)
        except BaseException:
            process.stop()
            raise
        return process

    def pids(self, role: str) -> list[int]:
        """The processes of a role, one of them where any will do."""
        return [self.parts[role].pid]

    def end(self, role: str, number: int) -> None:
        """End what has this role, and have it back: the supervisor of a service would start it again."""
        with self._at_work():
            self.parts[role].end(number)
            self.parts[role].start()

    def mend(self) -> list[str]:
        """Start again what has ended by itself; its names."""
        with self._at_work():
            ended = [name for name, part in self.parts.items() if part.ended]
            for name in ended:
                self.parts[name].start()
            return ended

    def stop(self) -> None:
        """All of it; waits for what is being started."""
        with self._one_at_a_time:
            self._over = True
            for part in self.parts.values():
                if part.process is not None:
                    part.process.stop()


class ServerTarget(SoakTarget):
    """One `opensled serve`."""

    main = SERVER

    def __init__(self, kind: TargetKind, place: Place) -> None:
        super().__init__(kind, place)
        self.parts[SERVER] = Part(self._serve)

    def _serve(self, listen: str) -> Process:
        precision = ("--dtype", "float64") if self.kind.engine == "torch" else ()
        fixed = ("--model", "tiny", "--engine", self.kind.engine, *precision, "--threads", "1")
        known = ("--tokens", str(self.place.tokens), "--log-level", "info")
        return self._listening(["serve", "--listen", listen, *fixed, *known, *self.flags], SERVER)


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
            environment=self.place.clock.environment,
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


def target_of(kind: TargetKind, place: Place) -> SoakTarget:
    return ClusterTarget(kind, place) if kind.replicas else ServerTarget(kind, place)
