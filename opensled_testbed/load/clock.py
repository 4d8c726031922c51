"""Time of a run: emulated seconds since its start, each of which takes `dilation` real ones."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """Starts at 0 when it is made."""

    def __init__(self, dilation: float = 1.0) -> None:
        self.dilation = dilation
        self.restart()

    def restart(self) -> None:
        """Now is 0."""
        self._started = time.monotonic()

    def now(self) -> float:
        return (time.monotonic() - self._started) / self.dilation

    async def until(self, moment: float) -> None:
        """Sleep; at once where it has passed."""
        await asyncio.sleep(max(0.0, moment - self.now()) * self.dilation)
