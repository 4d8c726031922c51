"""Work that nothing in this process could interrupt, in a process that can be ended: limits of time and memory.

For native code that compiles what a stranger wrote, and for templates that a stranger wrote. The process starts with
the first question; opensled/process/fork_loop.py is its side. If it dies, the next question starts another one.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from opensled.core.errors import EngineError, Overloaded
from opensled.process.fork_frames import (
    CRASHES,
    NO_MEMORY,
    STATUS,
    TICKET,
    ForkLimits,
    receive,
    receive_exactly,
    send,
)

# Isolated from the environment and from the current folder, with the modules of this process.
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from opensled.process.fork_loop import main; main()"
# glibc reserves 128 MB of addresses for each thread that allocates; under a limit it then allocates page by page.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
SETUP_SECONDS = 60.0  # a vocabulary of 150,000 tokens takes 1.2 s; chosen
TOO_LATE = b"the helper process for this work did not start within %d s; is this machine too busy?"
# A fork that waits instead of computing uses no processor time: after so many times its limit it is ended too. Chosen:
# on a busy machine work takes several times its processor time.
WALL_FACTOR = 15.0
END_SECONDS = 1.0  # for a process without questions to end; chosen
RETRY_SECONDS = 1.0  # after which a client asks again; chosen

T = TypeVar("T")


class OverLimit(Exception):
    """A question took more than its limit; the text names the limit."""


class Cancelled(Exception):
    """The question was cancelled."""


class _Gone(Overloaded):
    """The process was ended from outside: it may have taken nothing, so another one may go through."""

    def __init__(self) -> None:
        super().__init__(
            "the helper process for this work was ended twice from outside; is there memory left where it runs? try "
            "again",
            retry_after=RETRY_SECONDS,
        )


class Stop:
    """Tells work in a thread to end; `set` may be called in any thread, once or more."""

    def __init__(self) -> None:
        self._lock, self._is_set = threading.Lock(), False
        self._calls: list[Callable[[], object]] = []

    def set(self) -> None:
        with self._lock:
            self._is_set, calls, self._calls = True, self._calls, []
            for call in calls:
                call()

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """While inside, call when it is set, once; now, if it is already."""
        with self._lock:
            self._calls.append(call)
        if self._is_set:
            self.set()
        try:
            yield
        finally:
            with self._lock:
                self._calls = [each for each in self._calls if each is not call]


# What ends the questions asked in this context.
STOP: ContextVar[Stop | None] = ContextVar("stop", default=None)


class ForkServer:
    """Asks the process of one handler; several threads may ask at once.

    `handler` is "module:function"; the function takes `setup` and returns the function that answers questions.
    """

    def __init__(self, handler: str, setup: bytes, limits: ForkLimits) -> None:
        self._handler, self._setup, self._limits = handler, setup, limits
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._end: Callable[[], object] | None = None

    def ask(self, question: bytes) -> bytes:
        """The answer. Raises OverLimit, Cancelled if the context's `STOP` is set, EngineError for a failure, and
        Overloaded if the process is ended from outside again and again."""
        return self._retry(lambda: self._running().ask(question, STOP.get() or Stop()))

    def start(self) -> None:
        """Start the process now. Raises OverLimit, Overloaded as `ask` does, and EngineError with the reason if the
        setup fails."""
        self._retry(self._running)

    def close(self) -> None:
        """End the process and what it is doing; the next question starts another one."""
        with self._lock:
            self._end_process()

    def _retry(self, work: Callable[[], T]) -> T:
        """Do `work`; if its process is ended from outside, once more, with another one."""
        try:
            return work()
        except _Gone:
            return work()

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or self._process.has_ended():
                self._end_process()
                process = _Process(self._handler, self._limits)
                process.set_up(self._setup)
                self._process, self._end = process, weakref.finalize(self, process.end)
            return self._process

    def _end_process(self) -> None:
        if self._end is not None:
            self._end()
        self._process = None


class _Fork:
    """One that answers a question at a time; `left`: how many it may answer yet."""

    def __init__(self, ticket: int, left: int, seconds: float) -> None:
        """After `seconds` without an answer it is asked no longer."""
        self.ticket, self.left = ticket, left
        self.ended: Exception | None = None  # why it was ended from here
        self.talk, self.asked = socket.socketpair()
        self.told, self.tells = socket.socketpair()
        self.talk.settimeout(seconds)

    def answer(self, question: bytes) -> bytes | None:
        """Its answer; None if it has ended. Raises TimeoutError."""
        try:
            send(self.talk, question)
            return receive(self.talk)
        except TimeoutError:
            raise
        except OSError:
            return None

    def waits(self) -> bool:
        """Whether it has not ended, between two questions."""
        poll = select.poll()
        poll.register(self.talk, select.POLLIN)
        return not poll.poll(0)

    def status(self) -> int | None:
        """How it ended, in the form of `subprocess`; None if its process has ended as well."""
        found = receive_exactly(self.told, STATUS.size)
        return STATUS.unpack(found)[0] if found else None

    def hang_up(self) -> None:
        """Ask it nothing more; it ends by that."""
        for each in (self.talk, self.told):
            each.close()


class _Process:
    """One process and its forks."""

    def __init__(self, handler: str, limits: ForkLimits) -> None:
        self._limits = limits
        self._control, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-c", BOOT, handler, json.dumps(asdict(limits)), json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **ONE_ARENA},
            )
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._idle: list[_Fork] = []
        self._is_gone = False  # it is ending, at least

    def has_ended(self) -> bool:
        return self._is_gone or self._popen.poll() is not None

    def set_up(self, setup: bytes) -> None:
        """Raises as `ask` does if the setup fails."""
        self._control.settimeout(SETUP_SECONDS)
        try:
            send(self._control, setup)
            failure = receive(self._control)
        except TimeoutError:
            failure = TOO_LATE % SETUP_SECONDS
        except OSError:
            failure = None
        self._control.settimeout(None)
        if failure != b"":
            self.end()
            raise self._error(self._popen.returncode) if failure is None else EngineError(failure.decode())

    def ask(self, question: bytes, stop: Stop) -> bytes:
        """The answer of a fork. Raises OverLimit, Cancelled by `stop`, EngineError, and _Gone if it was ended."""
        while True:
            fork = self._free_fork()
            with stop.calling(partial(self._end_fork, fork, Cancelled("cancelled"))):
                try:
                    answer = fork.answer(question)
                except TimeoutError:
                    self._end_fork(fork, self._error(-signal.SIGPROF))
            if fork.ended is None and answer is not None:
                self._keep(fork)
                return answer
            status = 0 if fork.ended else fork.status()
            fork.hang_up()
            self._is_gone = self._is_gone or status is None
            if fork.ended or status != 0:  # else it had gone before it was asked
                raise fork.ended or self._error(status)

    def _free_fork(self) -> _Fork:
        """One that waits, or a new one."""
        with self._lock:
            while self._idle:
                fork = self._idle.pop()
                if fork.waits():
                    return fork
                fork.hang_up()
            return self._begin()

    def _begin(self) -> _Fork:
        fork = _Fork(next(self._tickets), self._limits.questions, WALL_FACTOR * self._limits.seconds)
        with fork.asked, fork.tells:
            try:
                ends = [fork.asked.fileno(), fork.tells.fileno()]
                socket.send_fds(self._control, [TICKET.pack(fork.ticket)], ends)
            except OSError:
                fork.hang_up()
                self._is_gone = True
                raise _Gone from None
        return fork

    def _keep(self, fork: _Fork) -> None:
        fork.left -= 1
        with self._lock:
            if fork.left and not self._is_gone:
                return self._idle.append(fork)
        fork.hang_up()

    def _end_fork(self, fork: _Fork, why: Exception) -> None:
        """End a fork, and let who waits for its answer go on."""
        fork.ended = why
        with suppress(OSError), self._lock:
            self._control.sendall(TICKET.pack(fork.ticket))
        with suppress(OSError):
            fork.talk.shutdown(socket.SHUT_RDWR)

    def _error(self, status: int | None) -> Exception:
        """The meaning of the end of a process; a negative status is the signal that ended it."""
        if status == -signal.SIGPROF:
            return OverLimit(f"{self._limits.seconds:g} s of processor time")
        if status == NO_MEMORY or (status and -status in CRASHES):
            return OverLimit(f"{self._limits.memory >> 20} MB of memory")
        return EngineError("the process for this work failed") if status and status > 0 else _Gone()

    def end(self) -> None:
        """End the process; what it computes ends with it."""
        with self._lock:  # no fork may be begun by what opens next under this number
            self._is_gone = True
            self._control.close()
            while self._idle:
                self._idle.pop().hang_up()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
