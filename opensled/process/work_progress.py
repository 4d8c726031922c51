"""How far a long command is, and about how long it still takes: on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean

from opensled.process.logs import tell
from opensled.process.progress_bar import bar

LINE_SECONDS = 15.0  # between two lines where standard error is no terminal
ERASE = "\r\x1b[K"


class WorkProgress:
    """A line that changes on a terminal, elsewhere a line now and then. Use it in a `with`.

    The time left follows from the parts that are done: a part takes what those of its kind took.
    """

    def __init__(self, word: str, kinds: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        """`word`: what the command is doing; `kinds` of all parts; `clock`: in seconds."""
        self._word, self._clock = word, clock
        self._since = self._told = clock()
        self._left, self._took = Counter(kinds), defaultdict[str, list[float]](list)
        self._shown = sys.stderr.isatty()

    def finish(self, kind: str) -> None:
        """A part of this kind is done; it took the time since the last one."""
        now = self._clock()
        self._took[kind].append(now - self._since)
        self._since = now
        self._left -= Counter([kind])
        self._show()

    def time_left(self) -> str:
        """As text; "" before anything is known."""
        known = self._left.keys() & self._took.keys()
        seconds = sum(fmean(self._took[kind]) * self._left[kind] for kind in known)
        if len(known) < len(self._left) and seconds < 1:
            return ""  # next to nothing is known
        return f"{'about' if len(known) == len(self._left) else 'at least'} {_duration(seconds)} left"

    def _show(self) -> None:
        done = sum(map(len, self._took.values()))
        total = done + self._left.total()
        words = ", ".join(filter(None, [f"{done} of {total} parts", self.time_left()]))
        if self._shown:
            line = f"{self._word} {bar(done, total)} {words}"
            print(ERASE + line[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
        elif self._clock() >= self._told + LINE_SECONDS:
            self._told = self._clock()
            tell(f"{self._word}: {words}")

    def __enter__(self) -> WorkProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._shown:
            print(ERASE, end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
