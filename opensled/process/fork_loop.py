"""The process behind `opensled.process.fork_server.ForkServer`: answers questions in forks of itself, and ends them.

It holds what all questions need (a vocabulary, a compiled template), so a fork begins at once and shares that memory.
The kernel holds a fork to its limits of processor time and memory, also where native code never returns to Python.
opensled/process/fork_frames.py has the frames on both pipes.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opensled.process.fork_frames import (
    ANSWER,
    CANCEL,
    FAILED,
    MEMORY,
    NO_MEMORY,
    QUESTION,
    READY,
    SETUP,
    TIME,
    ForkLimits,
    exit_kind,
    read_frame,
    whole_frame,
    write_frame,
)

Handler = Callable[[bytes], bytes]
CHUNK = 1 << 16
# A fork that waits instead of computing uses no processor time: after so many times its limit it is ended too. Chosen:
# on a busy machine work takes several times its processor time.
WALL_FACTOR = 15.0
KEPT_SHARE = 0.1  # of the limit of memory, beyond which a fork that has kept so much answers no more


def main() -> None:
    """Serve the questions of stdin until it ends; arguments: "module:function" of the handler, limits as JSON."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # its server's; it ends when the server's pipe does
        signal.signal(number, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not disturb the frames
    _be_ended_first()
    module, _, name = sys.argv[1].partition(":")
    limits = ForkLimits(**json.loads(sys.argv[2]))
    first = read_frame(0)
    if first is not None:
        _serve(ForkLoop(_prepare(module, name, first.content, limits, answers), limits, answers))


def _be_ended_first() -> None:
    """Out of memory, the kernel ends this process and its forks before the server; no core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _prepare(module: str, name: str, setup: bytes, limits: ForkLimits, answers: int) -> Handler:
    """The handler, made under the limits if the setup comes from a stranger."""
    make = getattr(importlib.import_module(module), name)
    if limits.limits_setup:
        hard = _limit(limits)
    try:
        handler: Handler = make(setup)
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception as error:
        write_frame(answers, SETUP, FAILED, str(error).encode("utf-8", "replace"))
        os._exit(0)
    if limits.limits_setup:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it shares
    write_frame(answers, SETUP, READY, b"")
    return handler


def _limit(limits: ForkLimits) -> int:
    """Hold this process to the limits from now on; returns the hard limit of its address space."""
    hard: int = resource.getrlimit(resource.RLIMIT_AS)[1]
    if sys.platform == "linux":
        most = _address_space() + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    return hard


def _address_space() -> int:
    """Bytes of this process's address space; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


@dataclass
class Fork:
    """A process that answers one question at a time."""

    pid: int
    asked: int  # pipe to it
    pipe: int  # pipe from it
    left: int  # questions that it may answer yet
    question: bytes = b""  # under way
    ticket: int = 0  # of the question under way; 0 = none is
    deadline: float = math.inf  # of that, by time.monotonic
    content: bytearray = field(default_factory=bytearray)  # of its answer so far
    ended: int = 0  # why it was ended: TIME, MEMORY or CANCEL

    def hang_up(self) -> None:
        """It is asked nothing more, and ends by that."""
        if self.asked >= 0:
            os.close(self.asked)
        self.asked = -1


class ForkLoop:
    """The forks of one process, by the pipe that each answers on."""

    def __init__(self, handler: Handler, limits: ForkLimits, answers: int) -> None:
        self._handler, self._limits, self._answers = handler, limits, answers
        self.forks: dict[int, Fork] = {}

    def begin(self, ticket: int, question: bytes) -> None:
        """Answer in a fork that has nothing to do, or in a new one."""
        # One may have answered just when it was ended: what ended it is no matter of the next question
        idle = (each for each in self.forks.values() if each.left and not each.ticket and not each.ended)
        fork = next(idle, None) or self._fork()
        fork.ticket, fork.question, fork.left = ticket, question, fork.left - 1
        fork.deadline = time.monotonic() + WALL_FACTOR * self._limits.seconds
        with contextlib.suppress(BrokenPipeError):  # it has ended: `read` finds that
            write_frame(fork.asked, ticket, QUESTION, question)

    def _fork(self) -> Fork:
        theirs, asked = os.pipe()
        pipe, answers = os.pipe()
        pid = os.fork()
        if pid == 0:
            for other in (0, self._answers, asked, pipe, *self._fork_pipes()):
                os.close(other)
            _answer_all(self._handler, theirs, answers, self._limits)
        os.close(theirs)
        os.close(answers)
        self.forks[pipe] = Fork(pid, asked, pipe, self._limits.questions)
        return self.forks[pipe]

    def _fork_pipes(self) -> list[int]:
        """The pipes to the forks there are: one that holds those of others would keep them from ending."""
        return [fork.asked for fork in self.forks.values() if fork.asked >= 0]

    def cancel(self, ticket: int) -> None:
        """End the fork of a question, if it is under way."""
        for fork in self.forks.values():
            if fork.ticket == ticket:
                self.end(fork, CANCEL)

    def end(self, fork: Fork, why: int) -> None:
        fork.ended = fork.ended or why
        os.kill(fork.pid, signal.SIGKILL)

    def end_late(self) -> float:
        """End forks behind their deadline; returns the seconds until the next one."""
        now = time.monotonic()
        for fork in self.forks.values():
            if now >= fork.deadline:
                self.end(fork, TIME)
        return max(0.01, min(3600.0, *(fork.deadline - now for fork in self.forks.values()), math.inf))

    def read(self, fork: Fork) -> None:
        """Take what a fork has written, and pass a whole answer on; an end without one is told by its status."""
        chunk = os.read(fork.pipe, CHUNK)
        fork.content += chunk
        if len(fork.content) > self._limits.memory:
            self.end(fork, MEMORY)
        elif not chunk:
            self._over(fork)
        elif frame := whole_frame(fork.content):
            self._pass(fork, ANSWER, frame.content)
            if not fork.left:
                fork.hang_up()

    def _pass(self, fork: Fork, kind: int, content: bytes = b"") -> None:
        write_frame(self._answers, fork.ticket, kind, content)
        fork.ticket, fork.deadline = 0, math.inf
        fork.question, fork.content = b"", bytearray()

    def _over(self, fork: Fork) -> None:
        del self.forks[fork.pipe]
        os.close(fork.pipe)
        _, status = os.waitpid(fork.pid, 0)
        fork.hang_up()
        kind = fork.ended or exit_kind(os.waitstatus_to_exitcode(status))
        if fork.ticket and kind == ANSWER:  # it had gone before it was asked
            self.begin(fork.ticket, fork.question)
        elif fork.ticket:
            self._pass(fork, kind)


def _answer_all(handler: Handler, asked: int, answers: int, limits: ForkLimits) -> None:
    """Answer one question after the other and exit, as a fork."""
    status, first = 1, _address_space()
    try:
        _limit(limits)
        while (question := read_frame(asked)) is not None:
            signal.setitimer(signal.ITIMER_PROF, limits.seconds)
            write_frame(answers, question.ticket, ANSWER, handler(question.content))
            if _address_space() - first > limits.memory * KEPT_SHARE:
                break
        status = 0
    except MemoryError:
        status = NO_MEMORY
    finally:
        os._exit(status)


def _serve(loop: ForkLoop) -> None:
    """Until the pipe of the server ends; then no fork stays behind."""
    while True:
        wait = loop.end_late()
        ready, _, _ = select.select([0, *loop.forks], [], [], wait)
        for pipe in ready:
            if pipe:
                loop.read(loop.forks[pipe])
        if 0 not in ready:
            continue
        frame = read_frame(0)
        if frame is None:
            break
        if frame.kind == QUESTION:
            loop.begin(frame.ticket, frame.content)
        else:
            loop.cancel(frame.ticket)
    for fork in loop.forks.values():
        loop.end(fork, CANCEL)
