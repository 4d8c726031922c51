"""Ends this process in time, whatever its threads do: native code in a thread cannot be stopped, only left."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End this process now: one that loads a model would break its threads while the interpreter ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class ExitWatch:
    """One deadline; a new one replaces it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def arm(self, seconds: float, status: int = 0) -> None:
        """End the process with `status` in `seconds`, unless it has ended by then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, os._exit, (status,))
        self._timer.daemon = True
        self._timer.start()
