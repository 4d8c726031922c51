"""One device's stream, as metrics and log tell of it: its times and its end, never its text."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from opensled.core.messages import Cancel, ClientMessage, Failure, Moved, Open, Opened, ServerMessage, Verdict
from opensled.metrics.answer_counts import CANCELLED, GRPC, AnswerClock, AnswerCounts

FRONTED = (("opensled-fronted", "1"),)  # metadata: a gateway's HTTP API asks, and counts the answer itself
LOST, MOVED = "lost", "moved"  # ends of a stream whose answer goes on in another one; they are only logged

log = logging.getLogger(__name__)


def is_fronted(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether a gateway's HTTP API has sent these metadata of a call."""
    return any(each in FRONTED for each in map(tuple, metadata or ()))


class StreamRecord:
    """Hears every message of the stream."""

    def __init__(self, counts: AnswerCounts, tenant: str) -> None:
        self._counts, self._tenant = counts.of(tenant, GRPC), tenant
        self._began = time.monotonic()
        self._clock = AnswerClock(self._counts, self._began)
        self._prompt = 0  # tokens
        self._known = 0  # tokens that the device has, prompt included
        self._fresh = True  # no part of the answer came by another stream
        self._end = LOST

    def add_incoming(self, message: ClientMessage) -> None:
        """The device sent it."""
        if isinstance(message, Open):
            self._began, self._known = time.monotonic(), len(message.committed)
            self._fresh = not message.committed
            self._clock = AnswerClock(self._counts, self._began, self._fresh)
        elif isinstance(message, Cancel):
            self._over(CANCELLED)

    def add_outgoing(self, message: ServerMessage) -> None:
        """It leaves for the device."""
        if isinstance(message, Verdict):
            final = message.base + len(message.tokens) - message.vetted
            self._clock.count_tokens(final - self._known)
            self._known = max(self._known, final)
            if message.finish_reason:
                self._over(message.finish_reason)
        elif isinstance(message, Opened):
            self._prompt = len(message.prompt_ids)
            self._known += self._prompt
            self._counts.prompt_tokens += self._prompt if self._fresh else 0
        elif isinstance(message, Failure):
            self._counts.errors[message.code] += 1
            self._end = message.code
        elif isinstance(message, Moved):
            self._end = MOVED

    def late(self) -> None:
        """The device waits no longer: its deadline has passed."""
        self._over(CANCELLED)

    def close(self) -> None:
        """The stream is over."""
        if log.isEnabledFor(logging.INFO):
            log.info("a stream ends", extra=self._facts())

    def _over(self, reason: str) -> None:
        if self._end == LOST:
            self._end = reason
            self._clock.count_end(reason)

    def _facts(self) -> dict[str, object]:
        return {
            "path": GRPC,
            "end": self._end,
            "seconds": round(time.monotonic() - self._began, 3),
            "tenant": self._tenant,
            "prompt_tokens": self._prompt,
            "completion_tokens": self._clock.tokens,
        }
