"""The state of the board without waiting for it: a thread of its own reads it when a reading is due."""

import threading
import time
from collections.abc import Callable

from hw_profiles.sysfs import BoardState, read_board

EVERY_S = 2.0  # between two readings (chosen): a change of the board is seen within twice of that


def board_watch(
    read: Callable[[], BoardState] = read_board, clock: Callable[[], float] = time.monotonic
) -> Callable[[], BoardState]:
    """A function that returns the state of the latest reading, and starts the next one when it is due."""
    state, due, reading = BoardState(), float("-inf"), threading.Lock()

    def update() -> None:
        nonlocal state
        try:
            state = read()
        finally:
            reading.release()

    def latest() -> BoardState:
        nonlocal due
        now = clock()
        if now >= due and reading.acquire(blocking=False):
            due = now + EVERY_S
            threading.Thread(target=update, name="board", daemon=True).start()
        return state

    return latest
