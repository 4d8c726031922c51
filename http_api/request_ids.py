"""Every response has an `x-request-id`, and the same as `request-id` for Anthropic's clients: that of the request, or a
new one. A failure is logged with it."""

from __future__ import annotations

import logging
import re
import secrets
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER, ANTHROPIC_HEADER = "x-request-id", "request-id"
GIVEN = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)  # what is repeated of a client's own; chosen

log = logging.getLogger(__name__)
_current: ContextVar[str | None] = ContextVar("request_id", default=None)


def current_id() -> str | None:
    """That of the request that is being answered; None = it has none."""
    return _current.get()


class RequestIds:
    """ASGI application: `app`, with these headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(HEADER, "")
        id = given if GIVEN.fullmatch(given) else f"req_{secrets.token_hex(12)}"

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[HEADER] = headers[ANTHROPIC_HEADER] = id
            await send(message)

        _current.set(id)  # of this request's task
        try:
            await self._app(scope, receive, with_id)
        except Exception:
            log.error("request %s failed; the cause follows", id)
            raise
