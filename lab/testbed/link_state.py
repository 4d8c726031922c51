"""What the connections of one emulated link share: its clock, its wires, its chaos, and what it has carried.

asyncio's own wake-ups are up to a millisecond late: epoll counts its timeouts in whole milliseconds and asyncio rounds
them up. On a link of 4 ms that alone would be more than 10 %. A timerfd of Linux counts nanoseconds and wakes epoll
as any other file does, so an `Alarm` is on time to some tens of microseconds; elsewhere it uses asyncio's timers.
"""

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hw_profiles.profiles import LinkProfile
from lab.testbed.link_model import LinkModel, Wire
from opensled.core.errors import UsageError

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


MIN_WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True)
class Chaos:
    """What breaks, in emulated seconds since the relay started; 0 = never."""

    outage_every: float = 0.0  # from the start of one outage to the next
    outage: float = 0.0  # how long each lasts
    reset_every: float = 0.0  # all connections are reset this often

    def __post_init__(self) -> None:
        if min(self.outage_every, self.outage, self.reset_every) < 0:
            raise UsageError("chaos: seconds must not be negative")
        if bool(self.outage_every) != bool(self.outage) or self.outage > self.outage_every / 2:
            raise UsageError("chaos: outages need both numbers, and may last half of the time at most")

    def arrival(self, at: float) -> float:
        """When something arrives that is due `at`: after the outage that it falls into, if any."""
        if not self.outage_every or at < self.outage_every:
            return at
        into = at % self.outage_every
        return at - into + max(into, self.outage)


class LinkState:
    """A link by its profile. `start` and `stop` run in an event loop."""

    def __init__(self, profile: LinkProfile, dilation: float, seed: int, chaos: Chaos) -> None:
        """`dilation`: real seconds for an emulated one. Raises UsageError."""
        if dilation <= 0:
            raise UsageError("dilation must be above 0")
        self.bytes_up = 0  # payload from the device's side so far
        self.bytes_down = 0
        # Hears of every read from a peer: whether it comes from the device's side, and how many bytes
        self.observer: Callable[[bool, int], None] | None = None
        self.profile, self.dilation, self.chaos = profile, dilation, chaos
        self._dark_until = 0.0  # emulated seconds since the start
        self._seeds = random.Random(seed)
        self._wires = {up: Wire(profile, up) for up in (True, False)}
        LinkModel(profile, seed, True)  # so that an odd profile is refused now

    def start(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self._alarm = Alarm()

    def stop(self) -> None:
        self._alarm.close()

    def now(self) -> float:
        """Emulated seconds since the start."""
        return (asyncio.get_running_loop().time() - self._began) / self.dilation

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back at an emulated time."""
        self._alarm.at(self._began + when * self.dilation, callback)

    def black_out(self, seconds: float) -> None:
        """Nothing that is sent from now on arrives before so many emulated seconds have passed."""
        self._dark_until = self.now() + seconds

    def arrival(self, at: float) -> float:
        """When something arrives that is due `at`, in emulated seconds since the start."""
        return max(self.chaos.arrival(at), self._dark_until)

    def become(self, profile: LinkProfile) -> None:
        """From now on this is a link of another profile, for new connections."""
        self.profile = profile
        self._wires = {up: Wire(profile, up) for up in (True, False)}

    def model(self, up: bool) -> LinkModel:
        """One direction of a new connection."""
        return LinkModel(self.profile, self._seeds.getrandbits(60), up, self._wires[up])

    def window(self, up: bool) -> int:
        """Bytes that may be under way in one direction of a connection."""
        slow = 2 * self.profile.rtt_p99_ms.typical / 1000
        return max(MIN_WINDOW_BYTES, int(slow / self._wires[up].byte_s))
