"""What a policy of lengths has learned, as numbers that a file can hold between two starts of a device.

A file may be damaged, or a stranger's: `Learned.of` lets nothing pass that a device could not have measured itself.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

Sums = tuple[float, ...]

# Numbers of each field; all are >= 0. A field may also be empty: nothing of its kind was seen.
COUNTS = {"tries": 32, "hits": 32, "times": 11, "token_s": 1, "server": 2, "forecasts": 2, "look_aheads": 2}
WHOLE = ("times", "token_s")  # fields with a number that is no sum
LARGEST, MOST = 1e6, 200.0  # numbers, and rounds or tokens that are not forgotten


@dataclass(frozen=True)
class Learned:
    """Sums as edge_client/lengths/observed.py keeps them; seconds, tokens, and rounds."""

    tries: Sums  # of draft tokens, by position
    hits: Sums  # those that were accepted
    times: Sums  # of rounds, see `RoundTimes.numbers`
    token_s: Sums = ()  # seconds of a draft token
    server: Sums = ()  # tokens that the server decoded by itself, and their seconds
    forecasts: Sums = ()  # hits of look-ahead, and those that were forecast
    look_aheads: Sums = ()  # hits of look-ahead, and tries

    @classmethod
    def of(cls, document: Any) -> Learned:
        """Raises ValueError for anything but what `as_json` returns."""
        if not isinstance(document, dict) or document.keys() != COUNTS.keys():
            raise ValueError("other fields")
        learned = cls(**{name: _numbers(document[name], COUNTS[name]) for name in COUNTS})
        if not (learned.tries and learned.hits and learned.times):
            raise ValueError("nothing of rounds")
        if max(*learned.tries, learned.times[1]) > MOST:
            raise ValueError("more than is remembered")
        if any(hits > tries for hits, tries in zip(learned.hits, learned.tries)):
            raise ValueError("more hits than tries")
        return learned

    def faded(self, keep: float) -> Learned:
        """With this share of the weight of everything: means and shares stay, and new rounds count the more."""
        rounds, *sums = self.times
        weighed = {
            name: tuple(keep * each for each in getattr(self, name)) for name in COUNTS if name not in WHOLE
        }
        return replace(self, **weighed, times=(rounds, *(keep * each for each in sums)))

    def as_json(self) -> dict[str, list[float]]:
        """Six digits of each number."""
        return {name: [float(f"{each:.6g}") for each in numbers] for name, numbers in asdict(self).items()}


def _numbers(values: Any, count: int) -> Sums:
    if not isinstance(values, list) or len(values) not in (0, count):
        raise ValueError("another number of values")
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        raise ValueError("no number")
    if not all(0 <= value <= LARGEST for value in values):
        raise ValueError("out of bounds")
    return tuple(map(float, values))


assert [field.name for field in fields(Learned)] == list(COUNTS)
