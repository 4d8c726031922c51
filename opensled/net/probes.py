"""What health probes hear of a process: `/livez` whether it works, `/readyz` why it would answer no request now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from opensled.core.errors import Loading

LIVE, READY = "/livez", ("/readyz", "/healthz")
# Asked so often that a log line each would bury the others
QUIET_PATHS = (LIVE, *READY, "/health", "/metrics")
STUCK_S = 10.0  # seconds without a turn of the event loop, after which a process counts as stuck; chosen
DRAINING = "draining: answers under way are finished, new requests are refused"


class Probes:
    """The state of one process; asked from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop` does the work of the process; None = it has none."""
        self.unready: Callable[[], str] = lambda: Loading.words  # the reason; "" = requests are answered
        self._loop = loop

    def stuck(self) -> str:
        """Why the process does not work; "" = it does. Waits for a turn of its event loop, for `STUCK_S` at most."""
        if self._loop is None:
            return ""
        turned = threading.Event()
        try:
            self._loop.call_soon_threadsafe(turned.set)
        except RuntimeError:
            return "the event loop has ended"
        return "" if turned.wait(STUCK_S) else f"the event loop has had no turn for {STUCK_S:g} s"
