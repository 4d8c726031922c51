"""How many threads compute a step: timed at load, by the number of its rows, and remembered for the next start.

All cores are often too many. A step of one row waits for memory, which one core may fill; and each thread waits for the
slowest, which shares its core with the server's event loop.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from statistics import median
from typing import NamedTuple

from opensled.models import remembered

ROWS = (1, 8, 64)  # a user alone, several with short drafts, a prompt
REPEATS = 3
LIMIT_S = 1.0  # for all that is timed
LONGER = 2.5  # times as long as fewer rows the next ones take at most, as far as it was seen
# A thread more must pay this much: it is missing to whatever else runs here.
GAIN = 1.05
UNSTEADY = 1.3  # times the shortest step, beyond which a median is no quiet machine's
# Additions in Python between two steps, as the event loop computes there: threads that spin disturb it
PAUSE = 3000


class StepThreads(NamedTuple):
    """Threads of a step: `few` up to `turn` - 1 rows, `many` from there on."""

    few: int
    turn: int = 0  # 0 = `few` for all
    many: int = 0

    def of(self, rows: int) -> int:
        return self.many if self.turn and rows >= self.turn else self.few

    def __str__(self) -> str:
        words = f"{self.few} thread{'s'[: self.few - 1]}"
        return f"{words}, {self.many} from {self.turn} rows on" if self.turn else words


def candidates(most: int) -> list[int]:
    """1, 2, 4 ... and `most`."""
    return [*(1 << each for each in range(most.bit_length()) if 1 << each < most), most]


class Timed(NamedTuple):
    """Rows -> threads -> median seconds of a step."""

    seconds: dict[int, dict[int, float]]
    is_steady: bool  # False: something else computed meanwhile


def measure(
    step: Callable[[int, int], object], most: int, clock: Callable[[], float] = time.perf_counter
) -> Timed:
    """Times `step(rows, threads)`, each number of threads for some steps in a row, twice: to change it takes time."""
    found: dict[int, dict[int, float]] = {}
    is_steady = True
    counts, ends = candidates(most), clock() + LIMIT_S
    for rows in ROWS if len(counts) > 1 else ():
        began = clock()
        seconds: dict[int, list[float]] = {count: [] for count in counts}
        for count in (*counts, *reversed(counts)):
            if not seconds[count] or clock() < ends:
                seconds[count] += _in_a_row(step, rows, count, clock)
        found[rows] = {count: median(each) for count, each in seconds.items()}
        is_steady &= all(median(each) <= UNSTEADY * min(each) for each in seconds.values())
        if clock() + LONGER * (clock() - began) > ends:
            break
    return Timed(found, is_steady)


def _in_a_row(
    step: Callable[[int, int], object], rows: int, count: int, clock: Callable[[], float]
) -> list[float]:
    """Seconds of steps; the first one, which is not counted, sets up the threads."""
    found = []
    for _ in range(REPEATS + 1):
        began = clock()
        sum(range(PAUSE))
        step(rows, count)
        found.append(clock() - began)
    return found[1:]


def pick(found: dict[int, dict[int, float]], most: int) -> StepThreads:
    """By what was timed; what was not is guessed: one row as one core, many rows as all of them."""
    best = {rows: _best(seconds) for rows, seconds in found.items()}
    few = best.get(ROWS[0], 1)
    rows = [each for each in ROWS[1:] if best.get(each, most) != few]
    if not rows:
        return StepThreads(few)
    before = ROWS[ROWS.index(rows[0]) - 1]
    return StepThreads(few, round((before * rows[0]) ** 0.5), best.get(rows[-1], most))


def pick_for_all(found: dict[int, dict[int, float]], most: int) -> StepThreads:
    """One number for steps of any rows, because their bits may depend on it: the least product of seconds."""
    if not found:
        return StepThreads(most)
    counts = next(iter(found.values()))
    return StepThreads(_best({count: prod(each[count] for each in found.values()) for count in counts}))


def _best(seconds: dict[int, float]) -> int:
    """The fewest threads that are nearly as fast as any."""
    fastest = min(seconds.values())
    return next(count for count, each in seconds.items() if each <= GAIN * fastest)


def find(
    step: Callable[[int, int], object],
    weights: Path | None,
    facts: Sequence[object],
    most: int,
    choose: Callable[[dict[int, dict[int, float]], int], StepThreads] = pick,
) -> StepThreads:
    """What an earlier start found for these weights and facts on this machine, else by timing `step`; `most`: threads.

    What a busy machine shows, twice, says little and is not remembered: then it is all cores but one.
    """
    place = remembered.place([*facts, most, *_of(weights)]) if weights else None
    try:
        known = StepThreads(**remembered.recall(place))
        if all(isinstance(value, int) for value in known) and 0 < max(known.few, known.many) <= most:
            return known
    except TypeError:  # nothing is there, or something else
        pass
    found = measure(step, most)
    if not found.is_steady:
        found = measure(step, most)
    if not found.is_steady:
        return StepThreads(max(1, most - 1))
    result = choose(found.seconds, most)
    remembered.keep(place, result._asdict())
    return result


def _of(weights: Path) -> Iterator[object]:
    files = sorted(weights.glob("*.safetensors")) if weights.is_dir() else [weights]
    for file in files:
        status = file.stat()
        yield from (file, status.st_size, status.st_mtime_ns)
    yield from platform.uname()
