"""The state of the board without waiting for it: a thread of its own reads it when a reading is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hw_profiles.sysfs import BoardState, read_board

EVERY_S = 2.0  # between two readings (chosen): a change of the board is seen within twice of that


class BoardWatch:
    """A call returns the state of the latest reading, and starts the next one when it is due."""

    def __init__(
        self, read: Callable[[], BoardState] = read_board, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._state, self._due = BoardState(), float("-inf")
        self._reading = threading.Lock()

    def __call__(self) -> BoardState:
        now = self._clock()
        if now >= self._due and self._reading.acquire(blocking=False):
            self._due = now + EVERY_S
            threading.Thread(target=self._update, name="board", daemon=True).start()
        return self._state

    def _update(self) -> None:
        try:
            self._state = self._read()
        finally:
            self._reading.release()
