"""How many threads compute a step: by the number of its rows, timed at load and while steps run.

All cores are often too many. A step of one row waits for memory, which one core may fill; and each thread waits for the
slowest, which shares its core with whatever else runs here.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import TypeVar

from opensled.models import remembered

T = TypeVar("T")

ROWS = (1, 8, 64)  # a user alone, several with short drafts, a prompt
REPEATS = 3  # steps that count of a try; as many before it, twice, tell what they take without it
LIMIT_S = 1.0  # for all that is timed at load
# More threads must be so much faster: they are missing to whatever else runs here, the last core most of all.
GAIN, LAST_GAIN = 1.05, 1.1
CHANGED = 1.5  # times as long, or as short, as at the end of the latest try: another number may be better now
LOST = 0.01  # of the seconds of steps that tries may lose


class Pace:
    """Steps of about the same rows: how many threads compute them, and what the latest of them took."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.latest: deque[float] = deque(maxlen=2 * REPEATS)
        self.usual = 0.0  # seconds at the end of the latest try
        self.upward = True  # whether more threads are to be tried next
        self.tried = 0  # threads of the try that runs; 0 = none does
        self.trial: list[float] = []  # what its steps took
        self.lost: dict[int, float] = {}  # seconds, by the latest try of each number
        self.credit = 0.0  # seconds that tries may lose now

    def candidate(self, fewer: int, more: int) -> int:
        """The number that the next step tries, of the neighbours of `threads` (0 = there is none); 0 = none now."""
        now = median(self.latest)
        has_changed = not self.usual / CHANGED < now < self.usual * CHANGED
        if has_changed:
            self.upward = now < self.usual
        wanted = more if self.upward else fewer
        if not wanted:
            self.upward, self.usual = not self.upward, now
        elif has_changed and self.credit > -REPEATS * now:  # steps may be so slow that none is lost
            return wanted
        elif self.credit >= (max(now, self.lost[wanted]) if wanted in self.lost else 0):
            return wanted
        return 0

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
        """`counts`: ascending; one of them is what all steps have."""
        self.counts, self._clock = tuple(counts), clock
        self.paces: dict[int, Pace] = {}  # by size

    def begin(self, known: Mapping[int, int]) -> None:
        """Steps of so many rows, and others of about as many, have so many threads at first."""
        self.paces = {_size(rows): Pace(threads) for rows, threads in known.items()}

    def keep(self, counts: Sequence[int]) -> None:
        """From now on it is one of these numbers only."""
        self.counts = tuple(counts)
        self.paces = {size: pace for size, pace in self.paces.items() if pace.threads in counts}

    def copy(self) -> StepThreads:
        """For another thread: it goes on from what is known here."""
        other = StepThreads(self.counts, self._clock)
        other.paces = {size: Pace(pace.threads) for size, pace in self.paces.items()}
        return other

    def run(self, rows: int, step: Callable[[int], T]) -> T:
        """`step(threads)`, a step of so many rows."""
        if len(self.counts) == 1:
            return step(self.counts[0])
        pace = self._pace(rows)
        began = self._clock()
        result = step(pace.tried or pace.threads)
        self._note(pace, self._clock() - began)
        return result

    def of(self, rows: int) -> int:
        """What steps of so many rows have now."""
        return self._pace(rows).threads

    def measure(self, step: Callable[[int, int], object]) -> None:
        """Times `step(rows, threads)`, from few threads up; rows that there is no time for are guessed to take all."""
        ends = self._clock() + LIMIT_S
        self.begin({ROWS[0]: self.counts[0]})
        for rows in ROWS:
            pace = self._pace(rows)
            pace.credit = inf
            while pace.upward and (rows == ROWS[0] or self._clock() < ends):
                self.run(rows, partial(step, rows))
            if pace.upward:
                pace.threads = self.counts[-1]
            pace.credit, pace.tried, pace.trial = 0.0, 0, []

    def _pace(self, rows: int) -> Pace:
        """That of steps of about so many rows, which begin like the ones that are most like them."""
        size = _size(rows)
        if size not in self.paces:
            near = min(self.paces, key=lambda each: abs(each - size), default=None)
            self.paces[size] = Pace(self.counts[0] if near is None else self.paces[near].threads)
        return self.paces[size]

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
        few, many = self.of(ROWS[0]), self.of(ROWS[-1])
        words = f"{few} thread{'s'[: few - 1]}"
        return words if few == many else f"{words}, {many} for a prompt"


def _size(rows: int) -> int:
    """The same for rows that take nearly the same time: up to 8 each number has its own, beyond a quarter more has."""
    more = max(0, rows.bit_length() - 3)
    return 4 * more + (rows >> more)


def candidates(most: int) -> list[int]:
    """1, 2, 4 ..., all but one and all."""
    return sorted({*(1 << each for each in range(most.bit_length())), max(1, most - 1), most})


def timed(
    step: Callable[[int, int], object],
    weights: Path | None,
    facts: Sequence[object],
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> StepThreads:
    """As an earlier start on this machine timed these weights and facts, else by timing `step`; `most`: threads.

    What is timed while the machine is busy is not remembered.
    """
    threads = StepThreads(candidates(most), clock)
    place = remembered.place([*facts, most, *_of(weights)]) if weights else None
    known = remembered.recall(place).get("threads")
    if isinstance(known, list) and len(known) == len(ROWS) and {*threads.counts}.issuperset(known):
        threads.begin(dict(zip(ROWS, known)))
    elif most > 1:
        threads.measure(step)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        if load <= most / 4:
            remembered.keep(place, {"threads": [threads.of(rows) for rows in ROWS], "load": load})
    return threads


def _of(weights: Path) -> Iterator[object]:
    files = sorted(weights.glob("*.safetensors")) if weights.is_dir() else [weights]
    for file in files:
        status = file.stat()
        yield from (file, status.st_size, status.st_mtime_ns)
    yield from platform.uname()
