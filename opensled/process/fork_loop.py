"""The process behind `opensled.process.fork_server.ForkServer`: begins forks of itself that answer, and ends them.

It holds what all questions need (a vocabulary, a compiled template), so a fork begins at once and shares that memory.
The kernel holds a fork to its limits of processor time and memory, also where native code never returns to Python.
A fork talks to the server on a socket of its own; this process tells the server on another one how the fork ended.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from opensled.process.fork_frames import NO_MEMORY, STATUS, TICKET, ForkLimits, receive, send

Handler = Callable[[bytes], bytes]
KEPT_SHARE = 0.1  # of the limit of memory, beyond which a fork that has kept so much answers no more


def main() -> None:
    """Begin and end forks as stdin says until it ends; arguments: "module:function" of the handler, limits as JSON."""
    # Its server's; it ends when the server's socket does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=0)
    _be_ended_first()
    module, _, name = sys.argv[1].partition(":")
    limits = ForkLimits(**json.loads(sys.argv[2]))
    setup = receive(control)
    if setup is not None:
        handler = _prepare(module, name, setup, limits, control)
        _Forks(handler, limits, control).serve()


def _be_ended_first() -> None:
    """Out of memory, the kernel ends this process and its forks before the server; no core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _prepare(module: str, name: str, setup: bytes, limits: ForkLimits, control: socket.socket) -> Handler:
    """The handler, made under the limits if the setup comes from a stranger. Tells "" or why there is none."""
    make = getattr(importlib.import_module(module), name)
    if limits.limits_setup:
        hard = _limit(limits)
    try:
        handler: Handler = make(setup)
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception as error:
        send(control, str(error).encode("utf-8", "replace") or b"the process for this work failed")
        os._exit(0)
    if limits.limits_setup:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it shares
    send(control, b"")
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


class _Forks:
    """The forks of this process."""

    def __init__(self, handler: Handler, limits: ForkLimits, control: socket.socket) -> None:
        self._handler, self._limits, self._control = handler, limits, control
        # By process: its ticket, and where to tell how it ended
        self._running: dict[int, tuple[int, int]] = {}

    def serve(self) -> None:
        """Until the server hangs up; then no fork stays behind."""
        signal.signal(signal.SIGCHLD, self._reap)
        while True:
            order, sockets, _, _ = socket.recv_fds(self._control, TICKET.size, 2)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # no fork ends unnoted
            if not order:
                break
            (ticket,) = TICKET.unpack(order)
            if sockets:
                self._begin(ticket, *sockets)
            else:
                self._kill(ticket)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    def _begin(self, ticket: int, talk: int, told: int) -> None:
        pid = os.fork()
        if not pid:
            for end in (0, told, *(each for _, each in self._running.values())):
                os.close(end)
            _answer_all(self._handler, socket.socket(fileno=talk), self._limits)
        os.close(talk)
        self._running[pid] = ticket, told

    def _kill(self, ticket: int) -> None:
        for pid, (each, _) in self._running.items():
            if each == ticket:
                os.kill(pid, signal.SIGKILL)

    def _reap(self, *signalled: object) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _, told = self._running.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, STATUS.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


def _answer_all(handler: Handler, talk: socket.socket, limits: ForkLimits) -> None:
    """Answer one question after the other and exit, as a fork."""
    status, first = 1, _address_space()
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _limit(limits)
        while (question := receive(talk)) is not None:
            signal.setitimer(signal.ITIMER_PROF, limits.seconds)
            answer = handler(question)
            if len(answer) > limits.memory:
                raise MemoryError
            send(talk, answer)
            if _address_space() - first > limits.memory * KEPT_SHARE:
                break
        status = 0
    except MemoryError:
        status = NO_MEMORY
    finally:
        os._exit(status)
