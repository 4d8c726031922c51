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

MANY = 8  # rows that take all cores at first; fewer leave one
REPEATS = 3  # steps that count of a try; as many before it, twice, tell what they take without it
# More threads must be so much faster: they are missing to whatever else runs here, the last core most of all.
GAIN, LAST_GAIN = 1.05, 1.1
CHANGED = 1.5  # times as long, or as short, as at the end of the latest try: another number may be better now
LOST = 0.01  # of the seconds of steps that tries may lose


class Pace:
    """Steps of about the same rows: how many threads compute them, and what the latest of them took."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.latest: deque[float] = deque(maxlen=2 * REPEATS)  # seconds a row, like all that follow
        self.usual = 0.0  # at the end of the latest try
        self.upward = False  # whether more threads are to be tried next
        self.tried = 0  # threads of the try that runs; 0 = none does
        self.trial: list[float] = []  # what its steps took
        self.lost: dict[int, float] = {}  # by the latest try of each number
        self.credit = 0.0  # what tries may lose now

    def candidate(self, fewer: int, more: int) -> int:
        """The number that the next step tries, of the neighbours of `threads` (0 = there is none); 0 = none now."""
        now = median(self.latest)
        has_changed = not self.usual / CHANGED < now < self.usual * CHANGED
        if has_changed:
            self.upward = now < self.usual
        wanted = more if self.upward else fewer
        if not wanted:
            self.upward, self.usual = not self.upward, now
            return 0
        expected = max(now, self.lost[wanted]) if wanted in self.lost else 0
        if has_changed:  # steps may be so slow that none is lost
            expected = -REPEATS * now
        return wanted if self.credit >= expected else 0

    def judge(self, needed: float) -> None:
        """Ends the try once enough is known of it. `needed`: times as fast as with fewer threads are more of them."""
        now = median(self.latest)
        total, expected = sum(self.trial), len(self.trial) * now
        is_hopeless = total > CHANGED * (REPEATS + 1) * now
        if len(self.trial) <= REPEATS and not is_hopeless:
            return
        self.lost[self.tried] = max(0.0, total - expected)
        self.credit -= self.lost[self.tried]
        counted = self.trial[1:]  # the first one set up the threads
        least = needed if self.tried > self.threads else 1 / needed
        if not is_hopeless and median(counted) * least < now:
            self.threads = self.tried
            self.latest = deque(counted, self.latest.maxlen)
        else:
            self.upward = not self.upward
        self.usual = median(self.latest)
        self.tried, self.trial = 0, []


class StepThreads:
    """Threads of each step, of some numbers of them. For one thread."""

    def __init__(self, counts: Sequence[int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`counts`: ascending; a single one is what all steps have."""
        self.counts, self._clock = tuple(counts), clock
        self._paces = {1: Pace(self.counts[-2:][0]), _size(MANY): Pace(self.counts[-1])}

    def run(self, rows: int, step: Callable[[int], T]) -> T:
        """`step(threads)`, a step of so many rows."""
        if len(self.counts) == 1:
            return step(self.counts[0])
        pace = self._pace(rows)
        began = self._clock()
        result = step(pace.tried or pace.threads)
        self._note(pace, (self._clock() - began) / rows)
        return result

    def of(self, rows: int) -> int:
        """What steps of so many rows have now."""
        return self._pace(rows).threads

    def _pace(self, rows: int) -> Pace:
        """That of steps of about so many rows, which begin like the ones that are most like them."""
        size = _size(rows)
        if size not in self._paces:
            near = min(self._paces, key=lambda each: abs(each - size))
            self._paces[size] = Pace(self._paces[near].threads)
        return self._paces[size]

    def _note(self, pace: Pace, seconds: float) -> None:
        if pace.tried:
            pace.trial.append(seconds)
            pace.judge(LAST_GAIN if max(pace.tried, pace.threads) == self.counts[-1] else GAIN)
            return
        pace.credit += LOST * seconds
        pace.latest.append(seconds)
        if len(pace.latest) >= REPEATS:
            around = (0, *self.counts, 0)
            place = self.counts.index(pace.threads)
            pace.tried = pace.candidate(around[place], around[place + 2])

    def __str__(self) -> str:
        most = self.counts[-1]
        return f"{'up to ' * (len(self.counts) > 1)}{most} thread{'s'[: most - 1]}"


def up_to(most: int, clock: Callable[[], float] = time.perf_counter) -> StepThreads:
    """Of 1, 2, 4 ..., all but one and all of `most` threads."""
    doubled = (1 << each for each in range(most.bit_length()))
    return StepThreads(sorted({*doubled, max(1, most - 1), most}), clock)


def _size(rows: int) -> int:
    """The same for rows each of which takes nearly the same time: few by their number, many by octaves."""
    return rows if rows < MANY else MANY + rows.bit_length()
