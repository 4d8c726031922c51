"""What the page shows beside the chat: one look a second, sent to each page that is open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from http_api.bodies import whole_body
from http_api.event_stream import run_while_connected
from http_api.fields import Fields, parse_object
from http_api.responses import to_json
from opensled.core.errors import InvalidRequest, Overloaded
from opensled.models.examples import examples
from opensled.text.origins import ORIGINS

PERIOD = 1.0  # seconds from one look to the next
MAX_WATCHERS = 16  # at the same time; a look at a full server takes its event loop 6 ms
MAX_BYTES = 4096  # of the body of a switch

Look = Callable[[], Mapping[str, Any]]  # gives what is to be shown now, as JSON


def conversation(model: str, origins: Sequence[str]) -> dict[str, Any]:
    """What the page's chat needs beside answers: questions to begin with, all origins of tokens, and those of them
    that can occur here."""
    facts = {name: facts._asdict() for name, facts in ORIGINS.items()}
    return {"examples": examples(model), "origins": facts, "possible": origins}


class PageView(Protocol):
    """What one process shows on its page."""

    def watcher(self) -> Look:
        """For one open page: its rates count from its last look."""

    def switch(self, tenant: str, device: str, drafting: bool) -> None:
        """Let drafts of a device be verified, or not. Raises NotFound for a device that is not known, Unsupported where
        there is no such switch."""


class Watching:
    """The endpoints of one view."""

    def __init__(self, view: PageView, ending: asyncio.Event, period: float = PERIOD) -> None:
        self._view, self._ending, self._period = view, ending, period
        self._watchers = 0

    async def events(self, request: Request) -> Response:
        """GET /page/events: looks as server-sent events, until the reader leaves or the process ends."""
        if request.method == "HEAD":  # which the router lets in with GET
            return Response(media_type=_Looks.media_type)
        if self._watchers >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} pages watch already; close one", retry_after=self._period)
        return _Looks(self._looks, self._count_watcher)

    @contextlib.contextmanager
    def _count_watcher(self) -> Iterator[None]:
        """A place, from before the first byte on: many that come at once find the same number."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    async def _looks(self) -> AsyncIterator[bytes]:
        look = self._view.watcher()
        while not self._ending.is_set():
            yield b"data: %s\n\n" % to_json(look())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), self._period)

    async def switch(self, request: Request) -> Response:
        """POST /page/devices {"tenant", "device", "drafting"}: see `PageView.switch`."""
        fields = Fields(parse_object(await whole_body(request, MAX_BYTES)))
        tenant, device = fields.text("tenant", ""), fields.text("device", "")
        drafting = fields.flag("drafting", None)
        fields.finish()
        if drafting is None:
            raise InvalidRequest("drafting must be true or false", "drafting")
        self._view.switch(tenant, device, drafting)
        return Response(to_json({"drafting": drafting}), media_type="application/json")


class _Looks(Response):
    """A stream of looks. It ends when its reader leaves: no server waits for a request after it."""

    media_type = "text/event-stream"

    def __init__(
        self, looks: Callable[[], AsyncIterator[bytes]], place: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`place`: held from the first byte to the last one."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.headers["connection"] = "close"
        del self.headers["content-length"]
        self._looks, self._place = looks, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place(), contextlib.suppress(ClientDisconnect):
            await run_while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._looks()) as looks:  # type: ignore[type-var]
            async for look in looks:
                await send({"type": "http.response.body", "body": look, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
