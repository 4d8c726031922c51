"""How many threads compute a step: by the number of its rows, and by what the latest steps took.

All cores are often too many. A step of one row waits for memory, which one core may fill; and each thread waits for the
slowest, which shares its core with whatever else runs here. That changes while a server runs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

T = TypeVar("T")

# Of a hundred steps, what tries may lose; and what more threads must gain, which are missing to whatever else runs here
FEW = 0.015


class Pace:
    """Steps of about the same rows: how many threads compute them, and what the latest of them took."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.latest: deque[float] = deque(maxlen=3)  # seconds a row, like all that follow
        self.others: dict[int, float] = {}  # by the latest try of each number, the oldest one first
        self.tried = 0  # threads of the try that runs; 0 = none does
        self.trial: list[float] = []  # what its steps took
        self.lost = 0.0  # steps, by tries, of which others have not paid theirs yet

    def note(self, seconds: float, counts: Sequence[int]) -> None:
        """A step took so long by `tried`, else `threads`; `counts`: all numbers."""
        if self.tried:
            self.trial.append(seconds)
            self._judge()
            return
        self.latest.append(seconds)
        self.lost = max(0.0, self.lost - FEW)
        if len(self.latest) == self.latest.maxlen:
            self.tried = self._candidate(counts)

    def _candidate(self, counts: Sequence[int]) -> int:
        """The neighbour of `threads` that the next step tries; 0 = none now."""
        place = counts.index(self.threads)
        near = {*counts[max(0, place - 1) : place + 2]} - {self.threads}
        unknown = near - self.others.keys()
        if unknown:
            return min(unknown)
        best = min(near, key=self.others.__getitem__)
        if self._is_better(best, self.others[best]):  # steps have become longer
            return best
        return 0 if self.lost else next(count for count in self.others if count in near)

    def _is_better(self, threads: int, seconds: float) -> bool:
        needed = 1 + FEW if threads > self.threads else 1 / (1 + FEW)
        return seconds * needed < median(self.latest)

    def _judge(self) -> None:
        """Ends the try once enough is known of it."""
        now, most = median(self.latest), 1 + len(self.latest)
        total, count = sum(self.trial), len(self.trial)
        if count < most and total < most * now:
            return
        counted = self.trial[1:] or self.trial  # the first one set up the threads
        self.lost += max(0.0, total / now - count)
        self.others.pop(self.tried, None)
        self.others[self.tried] = median(counted)
        if count == most and self._is_better(self.tried, median(counted)):
            self.others[self.threads] = now
            self.threads, self.latest = self.tried, deque(counted, self.latest.maxlen)
        self.tried, self.trial = 0, []


class StepThreads:
    """Threads of each step, of some numbers of them. For one thread."""

    def __init__(self, counts: Sequence[int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`counts`: ascending; a single one is what all steps have."""
        self.counts, self._clock = tuple(counts), clock
        self._paces: dict[int, Pace] = {}  # by rows

    def run(self, rows: int, step: Callable[[int], T]) -> T:
        """`step(threads)`, a step of so many rows."""
        if len(self.counts) == 1:
            return step(self.counts[0])
        pace = self._pace(rows)
        began = self._clock()
        result = step(pace.tried or pace.threads)
        pace.note((self._clock() - began) / rows, self.counts)
        return result

    def of(self, rows: int) -> int:
        """What steps of so many rows have now."""
        return self._pace(rows).threads

    def _pace(self, rows: int) -> Pace:
        """That of about so many rows, by two binary digits; it begins like the one of the nearest rows."""
        digits = max(0, rows.bit_length() - 2)
        size = rows >> digits << digits
        if size not in self._paces:
            near = min(self._paces, key=lambda each: abs(each - size), default=0)
            self._paces[size] = Pace(self._paces[near].threads if near else self.counts[-1])
        return self._paces[size]

    def __str__(self) -> str:
        most = self.counts[-1]
        return f"{'up to ' * (len(self.counts) > 1)}{most} thread{'s'[: most - 1]}"


def up_to(most: int, clock: Callable[[], float] = time.perf_counter) -> StepThreads:
    """Of 1, 2, 4 ..., all but one and all of `most` threads."""
    doubled = (1 << each for each in range(most.bit_length()))
    return StepThreads(sorted({*doubled, max(1, most - 1), most}), clock)
