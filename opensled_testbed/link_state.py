"""What the connections of one emulated link share: its clock, its wires, its chaos, and what it has carried."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from hw_profiles.link_profile import LinkProfile
from opensled.errors import UsageError
from opensled_testbed.alarm import Alarm
from opensled_testbed.link_model import LinkModel, Wire

LEAST_WINDOW_BYTES = 64 * 1024


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
        self.profile, self.dilation, self.chaos = profile, dilation, chaos
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

    def model(self, up: bool) -> LinkModel:
        """One direction of a new connection."""
        return LinkModel(self.profile, self._seeds.getrandbits(60), up, self._wires[up])

    def window(self, up: bool) -> int:
        """Bytes that may be under way in one direction of a connection."""
        slow = 2 * self.profile.rtt_p99_ms.typical / 1000
        return max(LEAST_WINDOW_BYTES, int(slow / self._wires[up].byte_s))
