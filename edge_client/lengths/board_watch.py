"""The board's state for whoever must not wait for it: read in a thread of its own, now and then, when asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hw_profiles.sysfs import BoardState, read_board

EVERY_S = 2.0  # between two looks; a throttled board or an empty battery is seen within two of them


class BoardWatch:
    """Calling it gives the state as it was at the latest look, and starts the next one when that is due."""

    def __init__(
        self, read: Callable[[], BoardState] = read_board, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._state, self._due = BoardState(), float("-inf")
        self._looking = threading.Lock()

    def __call__(self) -> BoardState:
        now = self._clock()
        if now >= self._due and self._looking.acquire(blocking=False):
            self._due = now + EVERY_S
            threading.Thread(target=self._look, name="board", daemon=True).start()
        return self._state

    def _look(self) -> None:
        try:
            self._state = self._read()
        finally:
            self._looking.release()
