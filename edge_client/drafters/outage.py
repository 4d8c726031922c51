"""When a source of drafts that failed is asked again: drafts are no answer, so nobody waits for them."""

import logging
import threading
import time
from collections.abc import Callable

from hw_profiles.fading import FadingRatio
from opensled.core.errors import OpenSledError
from opensled.core.printable import digits

log = logging.getLogger(__name__)

# Seconds until the source is asked again: a server that restarts is soon back, and one that is switched off costs a
# connection attempt now and then (chosen)
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
HALF_LIFE = 32.0  # tokens after which half of what was measured is forgotten


class Outage:
    """What all drafters of one source know of its failures. Each outage is logged once, and so is its end."""

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`source`: its name for people. `clock`: seconds."""
        self._source, self._clock = source, clock
        self._lock = threading.Lock()
        self.total = 0  # failures so far
        self._pace = FadingRatio(HALF_LIFE)  # tokens per second that was waited for them
        self._failures = 0  # in a row
        self.reason = ""  # of the latest; "" = there is no outage
        self._again_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the source may be asked: it works, or the pause after a failure has passed."""
        return not self._failures or self._clock() >= self._again_at

    def failed(self, error: OpenSledError) -> None:
        """The source failed: leave it alone for a while, and longer after each further failure."""
        with self._lock:
            self._again_at = self._clock() + min(FIRST_PAUSE * 2.0**self._failures, LONGEST_PAUSE)
            self.total, self._failures = self.total + 1, min(self._failures + 1, 16)
            is_new, self.reason = not self.reason, str(error)
        if is_new:
            log.warning(
                "%s gives no drafts: %s; answers go on without them, and it is asked again",
                self._source,
                error,
            )

    def waited(self, tokens: int, seconds: float) -> None:
        """`tokens` came within `seconds`, behind the first one of a stream."""
        self._pace.add(tokens, seconds, age=tokens)

    @property
    def words(self) -> str:
        """How the source does, for people; "" = nothing is known."""
        if self.reason:
            return f"{self._source} gives no drafts: {self.reason}"
        if self._pace.seen < 1:
            return ""
        return f"{self._source} writes {digits(self._pace.ratio)} tokens/s"

    def worked(self) -> None:
        """The source gave something."""
        if not self._failures:
            return
        with self._lock:
            self._failures, self.reason = 0, ""
        log.warning("%s drafts again", self._source)
