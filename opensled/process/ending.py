"""The signals that end a server: SIGTERM and SIGINT, and SIGHUP where it says that the terminal has gone. And an end in
time, whatever threads do: native code in a thread cannot be stopped, only left.

Sent by hand, or by a program that rotates logs, SIGHUP asks a server to read its files again and to go on. What may be
read again (tokens, certificates) is read as soon as it changes, so nothing is left to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

TERMINAL = "/dev/tty"  # of this process
GOING_S = 0.2  # after SIGHUP, until a terminal that ends is gone; chosen


def heed(end: Callable[[int], object], renew: Callable[[], object] | None = None) -> None:
    """In the running loop, call `end` with the number of each signal that ends, and `renew` for a SIGHUP that does not.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        hangup = _Hangup(end, renew or _tell)
        loop.add_signal_handler(signal.SIGHUP, loop.call_later, GOING_S, hangup.handle)


async def interruptible(work: Awaitable[T]) -> T:
    """The result of `work`, which Ctrl-C ends also where it comes just as the running loop begins to wait."""
    with waking(asyncio.get_running_loop()):
        return await work


@contextmanager
def waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Each signal ends a wait of `loop`. Python's handler runs between bytecodes, so that one which comes between the
    last of them and the system's wait, or to another thread, would be heard when the loop wakes (in the main thread;
    https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd)."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        loop.add_reader(receiver, receiver.recv, 4096)
        before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(receiver)


@contextmanager
def outlasting_terminal() -> Iterator[None]:
    """Processes that the main thread starts meanwhile ignore SIGHUP: their server ends them after its answers."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class _Hangup:
    """What SIGHUP means. A terminal that goes sends it more than once: by its shell, and by the system."""

    def __init__(self, end: Callable[[int], object], renew: Callable[[], object]) -> None:
        self._end, self._renew = end, renew
        self._had_terminal, self._over = _has_terminal(), False

    def handle(self) -> None:
        if not self._had_terminal or _has_terminal():
            self._renew()
        elif not self._over:
            self._over = True
            self._end(signal.SIGHUP)


def _has_terminal() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _tell() -> None:
    log.warning(
        "SIGHUP: tokens and certificates are read again when their files change; SIGTERM ends this process"
    )


def leave(status: int) -> NoReturn:
    """End this process now: one that loads a model would break its threads while the interpreter ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class ExitWatch:
    """One deadline; a new one replaces it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def arm(self, seconds: float, status: int = 0) -> None:
        """End the process with `status` in `seconds`, unless it has ended by then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, os._exit, (status,))
        self._timer.daemon = True
        self._timer.start()
