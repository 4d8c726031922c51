"""When bytes that enter a link come out of it: pure, seeded and fast. The relay and the simulator both ask it.

One direction of a link adds up what a byte waits for:

- *its turn*: the link sends at the profile's rate, one packet after another. Rates are those of payload, as speed tests
  give them, so headers are not added;
- *the way*: a fixed part and a heavy (Pareto) tail, 25 % correlated from one packet to the next. Both directions have
  half of the round-trip time, and their sum has the profile's median and 99th percentile;
- *losses*: bursts by the Gilbert-Elliott chain. The receiver's TCP hands nothing on before the lost segment came again,
  so a loss shows as a stall of one retransmission timeout. Segments lost in one flight are sent again together.

netem's own table adds a normal part, which makes delays negative that it then cuts at 0; it is left out here.
"""

import math
import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from hw_profiles.profiles import LinkProfile
from opensled.core.errors import UsageError

CORRELATION = 0.25  # of successive delays, between their normal scores
MIN_RTO_S = 0.2  # Linux's least retransmission timeout
SEGMENT_BYTES = 1448  # payload of a TCP segment on Ethernet
RAREST = 1e-4  # no delay is longer than that of the slowest packet of 10,000


class DelayTail(NamedTuple):
    """A Pareto tail of scale 1 that starts at 0, and what two independent draws of it add up to."""

    exponent: float  # P(delay > x) = (1 + x) ** -exponent
    median: float  # of the sum
    p99: float  # of the sum


# The sums have no closed form: computed by convolution, checked by draws in tests/test_link_model.py.
TAILS = (
    DelayTail(3.0, 0.6782, 5.409),
    DelayTail(2.0, 1.1253, 14.14),
    DelayTail(1.5, 1.6652, 34.84),
    DelayTail(1.2, 2.3172, 84.33),
)
MIN_FIXED = 0.25  # share of the median that no packet undercuts, where a tail allows it


class Way(NamedTuple):
    """The delay of one direction in seconds: `fixed + scale * tail`."""

    fixed: float
    scale: float
    exponent: float


def ways(median: float, p99: float) -> Iterator[Way]:
    """For each of TAILS, the way whose round trips have this median and 99th percentile, in seconds."""
    for tail in TAILS:
        scale = (p99 - median) / (tail.p99 - tail.median)
        yield Way((median - scale * tail.median) / 2, scale, tail.exponent)


@cache
def way(median: float, p99: float) -> Way:
    """The lightest tail that fits; raises UsageError where none does."""
    found = list(ways(median, p99))
    for each in found:
        if each.scale >= 0 and 2 * each.fixed >= MIN_FIXED * median:
            return each
    if found[-1].fixed < 0 or p99 < median:
        raise UsageError(
            f"a round trip of {1000 * median:g} ms (median) and {1000 * p99:g} ms (p99) cannot be modelled; "
            "p99 must lie between the median and 36 times the median"
        )
    return found[-1]


class Wire:
    """What all connections of a link share in one direction: its rate."""

    __slots__ = ("byte_s", "free_at")

    def __init__(self, profile: LinkProfile, up: bool) -> None:
        """`up`: from the device to the server. Raises UsageError when the profile's rate is 0."""
        rate = (profile.up_mbit_s if up else profile.down_mbit_s).typical
        if rate <= 0:
            raise UsageError(f"link {profile.id}: its rate must be above 0 Mbit/s")
        self.byte_s = 8 / (rate * 1e6)
        self.free_at = -math.inf

    def sent_at(self, now: float, size: int) -> float:
        """When the last of `size` bytes has left."""
        self.free_at = max(now, self.free_at) + size * self.byte_s
        return self.free_at


class LinkModel:
    """One connection's direction of a link. Times are seconds on the caller's clock, never dilated."""

    __slots__ = ("_good_to_bad", "_lost", "_random", "_rto", "_score", "_stays_bad", "_way", "last", "wire")

    def __init__(self, profile: LinkProfile, seed: int, up: bool, wire: Wire | None = None) -> None:
        """`wire`: shared with other connections; None = this one is alone. Raises UsageError for an odd profile."""
        loss = profile.loss.typical
        if not 0 <= loss < 1 or profile.burst < 1:
            raise UsageError(f"link {profile.id}: loss must be below 1, and burst at least 1 packet")
        self.wire = wire or Wire(profile, up)
        self.last = -math.inf  # latest delivery so far: TCP keeps the order
        self._random = random.Random(2 * seed + up)
        self._way = way(profile.rtt_s, profile.rtt_p99_ms.typical / 1000)
        self._score = self._random.gauss(0, 1)
        self._rto = max(MIN_RTO_S, profile.rtt_s)
        self._stays_bad = 1 - 1 / profile.burst
        self._good_to_bad = loss / (1 - loss) / profile.burst
        self._lost = False  # the state of the chain

    def deliver_at(self, now: float, size: int) -> float:
        """When the last of `size` bytes that enter at `now` comes out; never before what entered earlier."""
        arrival = self.wire.sent_at(now, size) + self._delay()
        if self._good_to_bad:
            arrival += self._stall(-(-size // SEGMENT_BYTES))
        self.last = max(self.last, arrival)
        return self.last

    def _delay(self) -> float:
        fresh = self._random.gauss(0, 1)
        self._score = CORRELATION * self._score + math.sqrt(1 - CORRELATION**2) * fresh
        slower = max(RAREST, math.erfc(self._score / math.sqrt(2)) / 2)  # share of packets that take longer
        return self._way.fixed + self._way.scale * (slower ** (-1 / self._way.exponent) - 1)

    def _stall(self, segments: int) -> float:
        """Seconds until every segment has come through: one timeout for each flight with a loss."""
        stall = 0.0
        while segments := sum(self._loses_one() for _ in range(segments)):
            stall += self._rto
        return stall

    def _loses_one(self) -> bool:
        self._lost = self._random.random() < (self._stays_bad if self._lost else self._good_to_bad)
        return self._lost
