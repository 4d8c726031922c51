"""Python reads this at its start where clocks.py wants it: time.sleep without absolute times, for libfaketime."""

import select
import time


def sleep(seconds: float) -> None:
    """See `time.sleep`."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select((), (), (), seconds)


time.sleep = sleep
