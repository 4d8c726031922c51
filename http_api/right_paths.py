"""The path that was meant where a client asks for one that is not served: another base URL, a slash too many, or one
below the path of a proxy."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from http_api.exchange import LONGEST_PATH, current
from opensled.net.probes import LIVE, READY

V1 = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages/count_tokens",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/models",
)  # longer ones before their ends
OLLAMA = ("/api/chat", "/api/generate", "/api/show", "/api/tags", "/api/ps", "/api/version")
PAGE = ("/page/chat", "/page/events", "/page/devices")
OTHERS = ("/tokenize", "/detokenize", "/openapi.json", "/status", "/health", LIVE, *READY, *PAGE)


MODELS = re.compile(r"(?:/v1|/api|/openai)*/models/(.+)")


def right_path(path: str) -> str:
    """The path that a client meant by `path`: without slashes at its end and doubled ones, and below the usual base URL
    where the end is that of a known one."""
    meant = "/" + "/".join(part for part in path.split("/") if part)
    if named := MODELS.fullmatch(meant):
        return f"/v1/models/{named[1]}"
    known = [
        *((name, name) for name in (*V1, *OLLAMA, *OTHERS)),
        *((name.removeprefix("/v1"), name) for name in V1),
    ]
    return next((name for end, name in known if meant.endswith(end)), "/" if meant == "/*" else path)


class RightPaths:
    """ASGI middleware, before all that judges by a path: each request goes where it was meant to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": right_path(scope["path"])}
            current().path = scope["path"][:LONGEST_PATH]
        await self._app(scope, receive, send)
