"""Work that nothing in this process could interrupt, in a process that can be ended: limits of time and memory.

For native code that compiles what a stranger wrote, and for templates that a stranger wrote. The process starts with
the first question; opensled/process/fork_loop.py is its side. If it dies, the next question starts another one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import asdict
from typing import TypeVar

from opensled.core.errors import EngineError, Overloaded
from opensled.process.fork_frames import (
    ANSWER,
    CANCEL,
    FAILED,
    GONE,
    MEMORY,
    QUESTION,
    READY,
    SETUP,
    TIME,
    ForkLimits,
    Frame,
    exit_kind,
    read_frame,
    write_frame,
)

# Isolated from the environment and from the current folder, with the modules of this process.
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from opensled.process.fork_loop import main; main()"
# glibc reserves 128 MB of addresses for each thread that allocates; under a limit it then allocates page by page.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
SETUP_SECONDS = 60.0  # a vocabulary of 150,000 tokens takes 1.2 s; chosen
TOO_LATE = (
    b"the helper process for this work did not start within %d s; is this machine too busy?" % SETUP_SECONDS
)
END_SECONDS = 1.0  # for a process without questions to end; chosen
RETRY_SECONDS = 1.0  # after which a client asks again; chosen

T = TypeVar("T")


class OverLimit(Exception):
    """A question took more than its limit; the text names the limit."""


class Cancelled(Exception):
    """The question was cancelled."""


class _Gone(Overloaded):
    """The process was ended from outside: it may have taken nothing, so another one may go through."""


class Stop:
    """Tells work in a thread to end; `set` may be called in any thread, once or more."""

    def __init__(self) -> None:
        self._lock, self._is_set = threading.Lock(), False
        self._then: list[Callable[[], object]] = []

    def set(self) -> None:
        with self._lock:
            self._is_set, then, self._then = True, self._then, []
        for call in then:
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call when it is set; now, if it is already."""
        with self._lock:
            if not self._is_set:
                self._then.append(call)
                return
        call()


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
        return self._retry(lambda: self._ask(question))

    def start(self) -> None:
        """Start the process now. Raises OverLimit, Overloaded as `ask` does, and EngineError with the reason if the
        setup fails."""
        self._retry(self._running)

    def close(self) -> None:
        """End the process and what it is doing; the next question starts another one."""
        with self._lock:
            if self._end is not None:
                self._end()
            self._process = None

    def _retry(self, work: Callable[[], T]) -> T:
        """Do `work`; if its process is ended from outside, once more, with another one."""
        try:
            return work()
        except _Gone:
            return work()

    def _ask(self, question: bytes) -> bytes:
        frame = self._running().ask(question, STOP.get())
        if frame.kind != ANSWER:
            raise self._error(frame)
        return frame.content

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or self._process.ended:
                process = _Process(self._handler, self._limits)
                frame = process.set_up(self._setup)
                if frame.kind != READY:
                    raise self._error(frame)
                self._process, self._end = process, weakref.finalize(self, process.end)
            return self._process

    def _error(self, frame: Frame) -> Exception:
        if frame.kind == CANCEL:
            return Cancelled("cancelled")
        if frame.kind == FAILED:
            return EngineError(frame.content.decode() or "the process for this work failed")
        if frame.kind == TIME:
            return OverLimit(f"{self._limits.seconds:g} s of processor time")
        if frame.kind == MEMORY:
            return OverLimit(f"{self._limits.memory >> 20} MB of memory")
        return _Gone(
            "the helper process for this work was ended twice from outside; is there memory left where it runs? try "
            "again",
            retry_after=RETRY_SECONDS,
        )


class _Process:
    """One process and the questions it is asked."""

    def __init__(self, handler: str, limits: ForkLimits) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-c", BOOT, handler, json.dumps(asdict(limits)), json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ONE_ARENA},
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._pipe, self._answers = self._popen.stdin, self._popen.stdout
        self._tickets = itertools.count(SETUP + 1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Frame]] = {}
        self.ended = False

    def set_up(self, setup: bytes) -> Frame:
        """How the setup went, as its frame says, or else the end of the process."""
        late, began = threading.Timer(SETUP_SECONDS, self._popen.kill), time.monotonic()
        late.start()
        try:
            self._write(SETUP, QUESTION, setup)
            frame = read_frame(self._answers.fileno())
        except BrokenPipeError:
            frame = None
        finally:
            late.cancel()
        if frame is None or frame.kind != READY:
            self.end()
            if frame is None and time.monotonic() - began >= SETUP_SECONDS:
                return Frame(SETUP, FAILED, TOO_LATE)
            return frame or Frame(SETUP, exit_kind(self._popen.returncode), b"")
        threading.Thread(target=self._read, name="fork answers", daemon=True).start()
        return frame

    def ask(self, question: bytes, stop: Stop | None) -> Frame:
        """The frame that answers; of kind GONE if the process has died."""
        ticket, answer = next(self._tickets), Future[Frame]()
        gone = Frame(ticket, GONE, b"")
        self._waiting[ticket] = answer
        if stop is not None:
            stop.then(lambda: self._deliver(Frame(ticket, CANCEL, b"")))
        try:
            self._write(ticket, QUESTION, question)
            if self.ended:
                return gone
            frame = answer.result()
            if frame.kind == CANCEL:
                self._write(ticket, CANCEL)
        except BrokenPipeError:
            # Its reader may not have noticed yet, and the next question must find another process.
            self.ended = True
            return gone
        return frame

    def _write(self, ticket: int, kind: int, content: bytes = b"") -> None:
        with self._lock:
            if self._pipe.closed:
                raise BrokenPipeError
            write_frame(self._pipe.fileno(), ticket, kind, content)

    def _deliver(self, frame: Frame) -> None:
        """Give the frame to the thread that waits for its ticket; only the first frame of a ticket counts."""
        answer = self._waiting.pop(frame.ticket, None)
        if answer is not None:
            answer.set_result(frame)

    def _read(self) -> None:
        """Pass answers on until the process ends; then let all who wait know."""
        while (frame := read_frame(self._answers.fileno())) is not None:
            self._deliver(frame)
        self.ended = True
        while self._waiting:
            with contextlib.suppress(KeyError):
                ticket, answer = self._waiting.popitem()
                answer.set_result(Frame(ticket, GONE, b""))
        self._answers.close()
        self._popen.wait()

    def end(self) -> None:
        """End the process; what it computes ends with it."""
        self.ended = True
        if not self._lock.acquire(timeout=END_SECONDS):
            self._popen.kill()  # it does not read what is being written
            self._lock.acquire()
        self._pipe.close()  # under the lock: no frame may go to what opens next under this number
        self._lock.release()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
