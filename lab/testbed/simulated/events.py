"""The clock of a simulation: what happens next, in order of time."""

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[[Any], None]


class Events:
    """Calls at times. Those at the same time come in the order in which they were asked for, `last` ones after them."""

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0  # seconds since the start of the run
        self._heap: list[tuple[float, bool, int, Call, Any]] = []
        self._count = 0

    @property
    def count(self) -> int:
        """Events that have happened."""
        return self._count - len(self._heap)

    def at(self, time: float, call: Call, argument: Any = None, last: bool = False) -> None:
        """`call(argument)` at `time`, which is not in the past."""
        self._count += 1
        heapq.heappush(self._heap, (time, last, self._count, call, argument))

    def run(self, until: float) -> None:
        """All that happens before `until`; the clock then stands there."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] < until:
            self.now, _, _, call, argument = pop(heap)
            call(argument)
        self.now = until
