"""One request and its response, as headers, log and metrics tell of it: never with its text.

Every response has an `x-request-id`, and the same as `request-id` for Anthropic's clients: that of the request, or a
new one. The log has one line for each request at level info, but for probes and scrapes.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opensled.core.answer import Chunk
from opensled.metrics.answer_counts import CANCELLED, OTHER, AnswerClock, AnswerCounts, RouteCounts
from opensled.net.probes import QUIET_PATHS

HEADER, ANTHROPIC_HEADER = "x-request-id", "request-id"
GIVEN = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)  # what is repeated of a client's own; chosen
LONGEST_PATH = 200  # characters of a path in the log; chosen
ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/page/chat",
)  # that give answers; the route of all other paths is OTHER

log = logging.getLogger(__name__)
_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@dataclass
class Exchange:
    """What is known of it so far."""

    id: str | None = None
    method: str = ""
    path: str = ""  # without the query, in which a client may have put a prompt or a key
    client: str = ""  # its address
    began: float = field(default_factory=time.monotonic)
    tenant: str = ""  # "" = this API has none, or the client has not said who it is
    counts: AnswerCounts | None = None  # where it counts; None = nowhere
    status: int = 0
    code: str = ""  # of the error that it ended with
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def counted(self) -> RouteCounts:
        """Where its answers and errors count."""
        if self.counts is None:
            return RouteCounts()
        return self.counts.of(self.tenant, self.path if self.path in ROUTES else OTHER)

    def end(self) -> None:
        """Count its error, if it ended with one, and log it."""
        if self.code and self.counts is not None:
            self.counted.errors[self.code] += 1
        if self.path not in QUIET_PATHS and log.isEnabledFor(logging.INFO):
            log.info("%s %s %d", self.method, self.path, self.status, extra=self._facts())

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "seconds": round(time.monotonic() - self.began, 3),
            "client": self.client,
            "tenant": self.tenant,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "request_id": self.id,
            "code": self.code,
        }
        if not (self.prompt_tokens or self.completion_tokens):
            del facts["prompt_tokens"], facts["completion_tokens"]
        return {name: fact for name, fact in facts.items() if fact not in ("", None)}


def current() -> Exchange:
    """The one of the request that is being answered."""
    return _current.get() or Exchange()


class AnswerRecord:
    """One of its answers."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._counts = exchange, exchange.counted
        self._clock = AnswerClock(self._counts, exchange.began)
        self._prompt = 0
        self._over = False

    def count_chunk(self, chunk: Chunk) -> None:
        """A piece of it is here."""
        tokens = len(chunk.token_ids)
        self._clock.count_tokens(tokens)
        self._exchange.completion_tokens += tokens
        if chunk.prefill is not None:
            self._prompt = chunk.prefill.length
        if chunk.finish_reason:
            if chunk.stats is not None:
                self._prompt = chunk.stats.prompt_tokens
            self._end(chunk.finish_reason)

    def fail(self) -> None:
        """It ends by an error, which counts once for its request."""
        self._over = True

    def close(self) -> None:
        """No more chunks come. Without a last chunk the client has left."""
        if not self._over:
            self._end(CANCELLED)

    def _end(self, reason: str) -> None:
        self._over = True
        self._counts.prompt_tokens += self._prompt
        self._exchange.prompt_tokens = max(self._exchange.prompt_tokens, self._prompt)
        self._clock.count_end(reason)


class Exchanges:
    """ASGI application: `app`, with an `Exchange` for each request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(HEADER, "")
        id = given if GIVEN.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        host, _ = scope.get("client") or ("", 0)
        exchange = Exchange(id, scope["method"], scope["path"][:LONGEST_PATH], host)

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[HEADER] = headers[ANTHROPIC_HEADER] = id
                exchange.status = message["status"]
            await send(message)

        _current.set(exchange)  # of this request's task
        try:
            await self._app(scope, receive, with_id)
        except Exception:
            log.error("request %s failed; the cause follows", id)
            raise
        finally:
            exchange.end()
