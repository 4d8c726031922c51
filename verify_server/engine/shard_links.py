"""The first shard's hold on the others: it starts them, tells them each call, and notices when one dies or hangs.

Each is a process at the other end of a pair of sockets. It hears calls there and tells that it lives; the end of the
socket ends it, so no shard stays behind. Without one shard the others wait for its part of a sum, so all end together.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from opensled.errors import EngineLost, OpenSledError, from_code

log = logging.getLogger(__name__)

BEAT = 1.0  # seconds between two signs of life
LOOK = 0.5  # seconds between two looks at the shards
# Seconds; chosen. A process that swaps, or opens a large library from a slow disk, is silent for a while.
SILENT, LONGEST_CALL = 60.0, 300.0
LOAD = "load"  # the only call that is no method of the engine; it may take as long as it does
NOTICE = 5.0  # until it is known which shard a failed sum is due to
LAST = 5.0  # for a killed process to be gone


class Beat(NamedTuple):
    """A shard lives; `calls`: how many it has ended."""

    calls: int


class Ready(NamedTuple):
    """A shard has loaded its part."""


class Failed(NamedTuple):
    """A shard ends by an error of opensled/errors.py."""

    code: str
    reason: str


class Call(NamedTuple):
    """A method of the engine that all shards run."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass
class _OtherShard:
    """One other shard, as the first one sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection
    heard: float  # when it last told that it lives, on the monotonic clock
    calls: int = 0  # that it has ended
    ready: threading.Event = field(default_factory=threading.Event)

    def ended(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(LAST)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"


class ShardLinks:
    """The other shards of a target. Made, and called, by one thread at a time; a thread of its own watches."""

    def __init__(
        self,
        size: int,
        silent: float = SILENT,
        longest_call: float = LONGEST_CALL,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the processes. `silent`, `longest_call`: seconds after which a shard counts as hung; `on_loss` is
        called when one is lost, for what still waits for it."""
        self.size = size
        self._silent, self._longest, self._on_loss = silent, longest_call, on_loss
        self._folder = tempfile.TemporaryDirectory(prefix="opensled-shards-")  # readable for this user alone
        self._told, self._since = 0, 0.0  # calls told, and since when the latest one runs; 0 = none does
        self._lost: EngineLost | OpenSledError | None = None
        self._over = threading.Event()
        self._links = [self._start(rank) for rank in range(1, size)]
        self._watcher = threading.Thread(target=self._watch, name="shards", daemon=True)
        self._watcher.start()

    @property
    def meeting(self) -> Path:
        """The file by which all shards meet."""
        return Path(self._folder.name) / "meeting"

    @property
    def processes(self) -> list[int]:
        """Ids of the processes."""
        return [link.process.pid for link in self._links]

    def _start(self, rank: int) -> _OtherShard:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            os.set_inheritable(theirs.fileno(), True)
            arguments = (theirs.fileno(), rank, self.size, self.meeting)
            process = subprocess.Popen(
                [sys.executable, "-m", "verify_server.engine.shard_worker", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the first shard alone
            )
            return _OtherShard(rank, process, Connection(ours.detach()), time.monotonic())

    @contextlib.contextmanager
    def call(self, method: str, *arguments: Any) -> Iterator[None]:
        """While inside, this process runs the method, as all other shards do.

        Raises EngineLost in place of what is raised inside for a lost shard. Errors of opensled/errors.py pass: all
        shards raise them alike. After any other one the shards do not know any more what the next call is.
        """
        self._require()
        try:
            self._told, self._since = self._told + 1, time.monotonic() if method != LOAD else 0.0
            for link in self._links:
                link.connection.send(Call(method, arguments))
            yield
        except OpenSledError:
            raise
        except Exception as error:
            self._over.wait(NOTICE)
            if self._lost is None:
                log.exception("shard 0 failed in %s", method)
                self._lose(EngineLost(f"shard 0 of {self.size} failed: {type(error).__name__}"))
            self._require(error)
        finally:
            self._since = 0.0
        self._require()

    def await_ready(self) -> None:
        """Until all shards have loaded their parts. Raises as `call` does, and what a shard raised while it loaded."""
        for link in self._links:
            while not link.ready.wait(LOOK):
                self._require()
            link.ready.clear()
        self._require()

    def close(self) -> None:
        """End all processes."""
        self._over.set()
        for link in self._links:
            link.process.kill()
        for link in self._links:
            link.process.wait(LAST)
        self._watcher.join(LAST)

    def _require(self, cause: BaseException | None = None) -> None:
        if self._lost is not None:
            raise self._lost from cause

    def _lose(self, error: EngineLost | OpenSledError) -> None:
        """A shard is lost, so all end; a sum that waits for them fails by that."""
        if not self._over.is_set():
            self._lost = error
            log.error("%s", error)
            self._on_loss()
            for link in self._links:
                link.process.kill()
            self._over.set()

    def _watch(self) -> None:
        by_connection: dict[object, _OtherShard] = {link.connection: link for link in self._links}
        while not self._over.is_set():
            for connection in wait([link.connection for link in self._links], LOOK):
                self._hear(by_connection[connection])
            now = time.monotonic()
            for link in self._links:
                if now - link.heard > self._silent:
                    self._lose(
                        self._loss(link, f"does not answer any more, for {now - link.heard:.0f} s now")
                    )
            if self._since and now - self._since > self._longest:
                self._lose(self._stuck())
        for link in self._links:
            link.connection.close()
        self._folder.cleanup()

    def _hear(self, link: _OtherShard) -> None:
        try:
            message = link.connection.recv()
        except (EOFError, OSError):
            self._lose(self._loss(link, link.ended()))
            return
        link.heard = time.monotonic()
        if isinstance(message, Beat):
            link.calls = message.calls
        elif isinstance(message, Ready):
            link.ready.set()
        elif isinstance(message, Failed):
            error = from_code(message.code, message.reason)
            known = not isinstance(error, EngineLost) and message.code != OpenSledError.code
            self._lose(error if known else self._loss(link, f"failed: {message.reason}"))

    def _loss(self, link: _OtherShard, what: str) -> EngineLost:
        return EngineLost(
            f"shard {link.rank} of {self.size} (process {link.process.pid}) {what}; the target is computed by all its "
            "shards or not at all, so this server ends: start it again"
        )

    def _stuck(self) -> EngineLost:
        behind = [link.rank for link in self._links if link.calls < self._told]
        names = f"shards {', '.join(map(str, behind))}" if behind else "shard 0"
        return EngineLost(
            f"{names} of {self.size} did not end a call in {self._longest:.0f} s; this server ends: start it again"
        )
