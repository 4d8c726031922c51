"""Averages that forget: every new observation takes weight from the older ones.

Devices, servers and policies follow changes with these: a board that gets hot, a text that gets easier, a busier link.
"""

from bisect import bisect_left, insort
from collections import deque


def remaining_share(age: float, half_life: float) -> float:
    """Share of its old weight that an observation keeps after `age`; it keeps half after `half_life` (same unit)."""
    return 0.5 ** (age / half_life)


class RunningMedian:
    """The low median of the latest values; in a round trip's path, so that nothing is sorted anew."""

    __slots__ = ("_latest", "_sorted", "_window")

    def __init__(self, window: int) -> None:
        """`window`: how many values count."""
        self._window, self._latest, self._sorted = window, deque[float](), list[float]()

    def add(self, value: float) -> float:
        """The median with `value`, which must not be NaN."""
        latest, ordered = self._latest, self._sorted
        if len(latest) == self._window:
            del ordered[bisect_left(ordered, latest.popleft())]
        latest.append(value)
        insort(ordered, value)
        return ordered[(len(ordered) - 1) // 2]


class FadingRatio:
    """The ratio of two sums that fade together, such as tokens per second, or hits per try."""

    __slots__ = ("_half_life", "_keep", "above", "below", "seen")

    def __init__(self, half_life: float, above: float = 0.0, below: float = 0.0) -> None:
        """`half_life`: in units of the `age` that `add` takes; `above`, `below`: what is assumed beforehand."""
        self._half_life, self.above, self.below = half_life, above, below
        self._keep = remaining_share(1.0, half_life)  # at the usual age, worked out once
        self.seen = 0.0  # sum of all ages so far

    def add(self, above: float, below: float, age: float = 1.0) -> None:
        """One observation; everything before it is `age` older now."""
        keep = self._keep if age == 1.0 else remaining_share(age, self._half_life)
        self.above = self.above * keep + above
        self.below = self.below * keep + below
        self.seen += age

    @property
    def ratio(self) -> float:
        """0 as long as nothing is known."""
        return self.above / self.below if self.below else 0.0
