"""Wake-ups that are on time to some tens of microseconds: asyncio's own are up to a millisecond late.

epoll counts its timeouts in whole milliseconds and asyncio rounds them up. On a link of 4 ms that alone would be more
than 10 %. A timerfd of Linux counts nanoseconds and wakes epoll like any other file does. Elsewhere asyncio must do.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
from collections.abc import Callable
from functools import cache

_MONOTONIC, _ABSOLUTE = 1, 1  # CLOCK_MONOTONIC, which loop.time() reads as well; TFD_TIMER_ABSTIME
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the interval, 0 for once, then the moment; a zero moment disarms."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls functions at times of `loop.time()`; belongs to the running event loop. Close it at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # of equal times, the first asked for comes first
        self._handle: asyncio.TimerHandle | None = None
        self._closed = False
        self._timer = -1
        if hasattr(_libc(), "timerfd_create"):
            self._timer = _libc().timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._timer >= 0:
            self._loop.add_reader(self._timer, self._ring)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` at `when`, or soon if that has passed; never once this is closed."""
        if self._closed:
            return
        heapq.heappush(self._due, (when, next(self._numbers), callback))
        if self._due[0][0] == when:
            self._set(when)

    def close(self) -> None:
        """Forget everything that is still to come."""
        self._closed = True
        self._due.clear()
        if self._handle is not None:
            self._handle.cancel()
        if self._timer >= 0:
            self._loop.remove_reader(self._timer)
            os.close(self._timer)
            self._timer = -1

    def _ring(self) -> None:
        if self._timer >= 0:
            with contextlib.suppress(BlockingIOError):  # when it was set anew after it rang
                os.read(self._timer, 8)
        now = self._loop.time()
        try:
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
        finally:
            if self._due:
                self._set(self._due[0][0])

    def _set(self, when: float) -> None:
        if self._timer < 0:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_at(when, self._ring)
            return
        seconds, fraction = divmod(max(when, 1e-9), 1)
        spec = _TimerSpec(0, 0, int(seconds), max(1, int(fraction * 1e9)))
        if _libc().timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
