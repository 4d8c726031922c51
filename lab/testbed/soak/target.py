"""What a soak breaks: the processes of one target, which end and are started again.

Methods block, for seconds or longer where processes start.
"""

import contextlib
import secrets
import signal
import threading
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapt.handout.draft_store import DraftStore
from lab.testbed.processes import Process, free_port, settings
from lab.testbed.replica_cluster import READY_S
from lab.testbed.soak.clocks import StepClock
from lab.testbed.soak.kinds import TargetKind
from opensled.core.errors import OpenSledError

ANY_PORT = "127.0.0.1:0"
EDGE = "edge"
FLEET, NEIGHBOUR = "fleet", "neighbour"  # tenants of the devices that mean no harm, in turns
KEPT_MB = 1  # of text that a target keeps of it


@dataclass(frozen=True)
class Place:
    """Where a target runs: its folder for logs and files, the clock of its processes, and who may ask it."""

    folder: Path
    clock: StepClock
    tokens: Path


def private_file(path: Path, text: str) -> Path:
    """A file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path


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
        self.operator = secrets.token_hex(16)  # opens its page
        self.handout = place.folder / "handout"  # drafts that are handed out, whose owner alone may read them
        DraftStore(self.handout).make()
        self._operators = private_file(place.folder / "operators", self.operator)
        self._one_at_a_time = threading.RLock()
        self._over = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Those of its kind, of its own API, of what it keeps, and of the drafts that it hands out."""
        served = ("--http", self.http, "--operator-keys", str(self._operators))
        return (
            *self.kind.flags,
            *("--drafts", str(self.handout)),
            *(served if self.kind.http else ()),
            *(("--keep-text", str(self.kept)) if self.kind.keeps else ()),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes: its clock, and what has no flag."""
        return {**self.place.clock.environment, **settings(keep_text_mb=KEPT_MB)}

    @property
    def kept(self) -> Path:
        """The folder of the text that it keeps."""
        return self.place.folder / "kept"

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

    @property
    def origin(self) -> str:
        """HOST:PORT of what has the target."""
        return self.address

    def start(self) -> None:
        """Its parts, one after another."""
        with self._at_work():
            for part in self.parts.values():
                part.start()

    def add_edge(self, server: str, token: Path) -> Part:
        """A real device that asks `server`; raises OpenSledError if it does not start."""
        folder = self.place.folder

        def start(listen: str) -> Process:
            flags = [
                *("--server", server, "--token-file", str(token), "--http", listen, "--threads", "1"),
                *("--personal-table", str(folder / "personal.table"), "--log-level", "info"),
            ]
            return self._listening(["edge", *flags], EDGE, cache_dir=folder / "cache")

        part = self.parts[EDGE] = Part(start)
        with self._at_work():
            part.start()
        return part

    def _listening(
        self,
        arguments: Sequence[str],
        name: str,
        module: str = "opensled",
        **unflagged: object,
    ) -> Process:
        process = Process(
            arguments,
            isolated=True,
            environment={**self.environment, **settings(**unflagged)},
            module=module,
            log=self.place.folder / f"{name}.log",
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
            for part in reversed(self.parts.values()):  # first those that ask the others
                if part.process is not None:
                    part.process.stop()
