"""When a source of drafts that failed is asked again: drafts are no answer, so nobody waits for them."""

import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from hw_profiles.fading import FadingRatio
from opensled.core.errors import OpenSledError
from opensled.core.printable import digits

log = logging.getLogger(__name__)

# Seconds until the source is asked again: a server that restarts is soon back, and one that is switched off costs a
# connection attempt now and then (chosen)
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
HALF_LIFE = 32.0  # tokens after which half of what was measured is forgotten
# A source that gave nothing for WARM_S may have put its model away (Ollama after 300 s; others sooner). Its first token
# is waited for COLD_S by a drafter, then in the background, for LOAD_S at most: until a large model is loaded (chosen)
WARM_S, COLD_S, LOAD_S = 60.0, 1.0, 300.0
END = object()

Item = TypeVar("Item")


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
        self._worked_at = -math.inf
        self._awaited = 0  # streams whose first item is awaited in the background

    @property
    def is_over(self) -> bool:
        """Whether the source may be asked: it works, or the pause after a failure has passed."""
        return not self._is_starting and (not self._failures or self._clock() >= self._again_at)

    @property
    def _is_cold(self) -> bool:
        return self._clock() - self._worked_at > WARM_S

    @property
    def _is_starting(self) -> bool:
        return self._awaited > 0 and self._is_cold

    def patient(
        self, open: Callable[[float], Generator[Item | None, None, None]], first_s: float
    ) -> Generator[Item | None, None, None]:
        """What a stream gives, which `open` begins with the seconds that its first item may take.

        That of a cold source is awaited in the background where it is long in coming: many a server ends to load its
        model when its client goes. Until then the source is left alone.
        """
        if self._is_starting:
            return
        is_cold, until = self._is_cold, self._clock() + COLD_S
        stream = open(LOAD_S if is_cold else first_s)
        has_begun = not is_cold
        try:
            for item in stream:
                has_begun = has_begun or item is not None
                yield item
                if not has_begun and self._clock() > until:
                    return
        finally:
            if has_begun:
                stream.close()
            else:
                with self._lock:
                    self._awaited += 1
                threading.Thread(target=self._await, args=(stream,), daemon=True).start()

    def _await(self, stream: Generator[object, None, None]) -> None:
        try:
            while (item := next(stream, END)) is None:
                time.sleep(0.02)  # whatever it sends meanwhile
            if item is not END:
                self.worked()
        except OpenSledError as error:
            self.failed(error)
        finally:
            stream.close()
            with self._lock:
                self._awaited -= 1

    def failed(self, error: OpenSledError) -> None:
        """The source failed: leave it alone for a while, and longer after each further failure."""
        with self._lock:
            self._worked_at = -math.inf
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
        if self._is_starting:
            return f"{self._source} has yet to give its first token; until then answers go on without it"
        if self._pace.seen < 1:
            return ""
        return f"{self._source} writes {digits(self._pace.ratio)} tokens/s"

    def worked(self) -> None:
        """The source gave something."""
        self._worked_at = self._clock()
        if not self._failures:
            return
        with self._lock:
            self._failures, self.reason = 0, ""
        log.warning("%s drafts again", self._source)
