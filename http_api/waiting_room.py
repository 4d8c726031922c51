"""Where requests wait for a place at a full server: not too many of them, and not for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from opensled.core.errors import Overloaded

# Both chosen: within the 60 s that proxies wait for the first byte; as many as may be opening at a server
WAIT_SECONDS, MOST = 30.0, 128
RETRY_SECONDS = 0.1  # between two tries for a place, at least; chosen


class WaitingRoom:
    """That of one API. A request that leaves, or has begun, gives its chair back."""

    def __init__(self, seconds: float, unready: Callable[[], str]) -> None:
        """`seconds` that one request may wait; `unready`: why there will be no place, "" = there may be one."""
        self._seconds, self._unready, self._taken = seconds, unready, 0

    @contextmanager
    def entry(self) -> Iterator[Callable[[Overloaded], Awaitable[None]]]:
        """Of one request: yields what waits after a refusal, as long as the server says, or raises that refusal."""
        until, sits = time.monotonic() + self._seconds, False

        async def wait(refusal: Overloaded) -> None:
            nonlocal sits
            pause = max(RETRY_SECONDS, refusal.retry_after)
            is_full = not sits and self._taken >= MOST
            if is_full or time.monotonic() + pause > until or self._unready():
                raise refusal
            self._taken, sits = self._taken + (not sits), True
            await asyncio.sleep(pause)

        try:
            yield wait
        finally:
            self._taken -= sits
