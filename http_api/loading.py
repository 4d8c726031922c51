"""An API whose model is still loading: its port is taken, and its clients are told to come again."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from http_api.failures import refusal
from http_api.responses import to_json
from http_api.right_paths import right_path
from opensled.core.errors import Loading
from opensled.net.probes import LIVE

LIVES = {"status": "ok", "server": "loading"}  # what GET /livez and /health say: this process works


class LoadingGate:
    """ASGI application: that of `app`, as soon as there is one."""

    def __init__(self, words: str = Loading.words) -> None:
        """`words`: what clients are told until then, with status 503."""
        self.app: ASGIApp | None = None
        self._words = words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.app or self._response(right_path(scope["path"])))(scope, receive, send)

    def _response(self, path: str) -> Response:
        if path in (LIVE, "/health"):
            return Response(to_json(LIVES), media_type="application/json")
        response = refusal(path, Loading(self._words))
        if path == "/":  # a browser then shows the page by itself
            response.headers["Refresh"] = response.headers["Retry-After"]
        return response
