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

Part = tuple[object, ...]  # a piece of the work; its first item names its kind

LINE_SECONDS = 15.0  # between two lines where standard error is no terminal
ERASE = "\r\x1b[K"


class WorkProgress:
    """A line that changes on a terminal, elsewhere a line now and then. Use it in a `with`.

    The time left follows from the parts that are done: a part takes what equal parts took, else what its kind took.
    """

    def __init__(self, word: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`word`: what the command is doing; `clock`: in seconds."""
        self._word, self._clock = word, clock
        self._since = self._told = clock()
        self._left = Counter[Part]()
        self._took = defaultdict[Part, list[float]](list)
        self._shown = sys.stderr.isatty()

    def expect(self, parts: Iterable[Part]) -> None:
        """All that is left to do from now on. The line is gone until a part is done, so there is room for others."""
        self._left = Counter(parts)
        self._erase()

    def finish(self, part: Part) -> None:
        """`part` is done; it took the time since the last one."""
        now = self._clock()
        self._took[part].append(now - self._since)
        self._since = now
        self._left -= Counter([part])
        self._show()

    @property
    def parts(self) -> str:
        """How many parts are done, as text."""
        done = self._count_done()
        return f"{done} of {done + self._left.total()}"

    def time_left(self) -> str:
        """As text; "" before anything is known."""
        expected = {part: self._estimate_seconds(part) for part in self._left}
        known = {part: seconds for part, seconds in expected.items() if seconds is not None}
        seconds = sum(each * self._left[part] for part, each in known.items())
        if len(known) < len(expected) and seconds < 1:
            return ""  # next to nothing is known
        return f"{'about' if len(known) == len(expected) else 'at least'} {_duration(seconds)} left"

    def _estimate_seconds(self, part: Part) -> float | None:
        """Seconds that `part` will take; None where nothing of its kind is done yet."""
        same = self._took.get(part) or [
            took for each in self._took if each[0] == part[0] for took in self._took[each]
        ]
        return fmean(same) if same else None

    def _count_done(self) -> int:
        return sum(map(len, self._took.values()))

    def _show(self) -> None:
        words = ", ".join(filter(None, [f"{self.parts} parts", self.time_left()]))
        if self._shown:
            line = f"{self._word} {bar(self._count_done(), self._count_done() + self._left.total())} {words}"
            print(ERASE + line[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
        elif self._clock() >= self._told + LINE_SECONDS:
            self._told = self._clock()
            tell(f"{self._word}: {words}")

    def __enter__(self) -> WorkProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._erase()

    def _erase(self) -> None:
        if self._shown:
            print(ERASE, end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
