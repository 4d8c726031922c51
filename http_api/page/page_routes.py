"""Where the page and what it asks for are found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from http_api.page.document import show
from http_api.page.views import PageView, Watching

EVENTS, SWITCH = "/page/events", "/page/devices"


def page_routes(
    view: PageView,
    chat: Callable[[Request], Awaitable[Response]],
    ending: asyncio.Event,
    origins: tuple[str, ...],
) -> list[Route]:
    """The routes of a page that shows `view`; `chat` answers its questions, pages of `origins` may show it."""
    watching = Watching(view, ending)
    return [
        Route("/", partial(show, origins)),
        Route("/page/chat", chat, methods=["POST"]),
        Route(EVENTS, watching.events),
        Route(SWITCH, watching.switch, methods=["POST"]),
    ]
