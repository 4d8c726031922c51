"""The routes of the API over a backend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from http_api import requests
from http_api.backend import HEARTBEAT, Backend
from http_api.bodies import MAX_CHAT_BODY, json_response, read_body
from http_api.event_stream import EventStream, Told, merge, read_first_chunks, run_while_connected, whole
from http_api.failures import HANDLERS
from http_api.guard import Access
from http_api.messages_api.message_request import VERSION
from http_api.messages_api.message_routes import as_model, list_models, message_routes
from http_api.model_names import asked_names, by_itself, is_name, takes_alone
from http_api.ollama.answer_lines import without_prompt
from http_api.ollama.ollama_requests import OllamaRequest
from http_api.ollama.routes import ollama_routes, running
from http_api.openapi import description
from http_api.page.page_chat import PageReply, page_request
from http_api.page.page_routes import page_routes
from http_api.page.views import PageView
from http_api.response_api.response_reply import ResponseReply
from http_api.response_api.response_request import response_request
from http_api.responses import Reply, model_card
from http_api.right_paths import RightPaths
from http_api.token_routes import token_routes
from http_api.waiting_room import WaitingRoom
from opensled.core.errors import NotFound, Unreachable
from opensled.core.messages import ModelInfo
from opensled.metrics.registry import Metric, page_of, registry
from opensled.net.probes import LIVE, READY

Asked = requests.Request | OllamaRequest
Read = Callable[[dict[str, Any], ModelInfo], Asked]


def build_app(
    backend: Backend,
    access: Access = Access(),
    ending: asyncio.Event | None = None,
    heartbeat: float = HEARTBEAT,
    metrics: Sequence[Metric] = (),
    guard: Middleware | None = None,
    lenient: bool = False,
    view: PageView | None = None,
    wait: float = 0.0,
) -> Starlette:
    """The ASGI application of one backend; `access` says who may call it.

    Once `ending` is set, answers under way end: see `merge`. `heartbeat`: see `EventStream`. `metrics`: told to callers
    on loopback. `guard`: in place of the keys of `access`. `lenient`: see `read_body`. `view`: of the page; None =
    there is no page. `wait`: seconds that a request may wait for a place.
    """
    ending = ending or asyncio.Event()
    waiting = WaitingRoom(wait, lambda: backend.unready)
    api = Api(backend, ending, heartbeat, lenient, metrics, waiting)
    chat = partial(api.complete, requests.chat_request)
    raw = partial(api.complete, requests.completion_request)
    responses = partial(api.complete, response_request, kind=ResponseReply)
    page_chat = partial(api.complete, page_request, kind=PageReply)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", raw, methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            *message_routes(api.complete),
            Route("/v1/models", api.models),
            Route("/v1/models/{model:path}", api.model),
            *token_routes(backend, lenient),
            Route("/openapi.json", api.openapi),
            Route("/status", api.status),
            # The second one as vLLM and llama.cpp have it
            *(Route(path, api.live) for path in (LIVE, "/health")),
            *(Route(path, api.ready) for path in READY),
            *([Route("/metrics", api.metrics)] if access.local and metrics else []),
            *(page_routes(view, page_chat, ending, access.origins) if view else []),
            Route("/", running),
            *ollama_routes(backend, api.complete, lenient),
        ],
        middleware=[Middleware(RightPaths), *access.middleware(guard)],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False  # http_api/right_paths.py has gone there already
    return app


class Api:
    """The endpoints."""

    def __init__(
        self,
        backend: Backend,
        ending: asyncio.Event,
        heartbeat: float,
        is_lenient: bool,
        metrics: Sequence[Metric],
        waiting: WaitingRoom,
    ) -> None:
        self._backend, self._ending, self._heartbeat, self._waiting = backend, ending, heartbeat, waiting
        self._created = int(time.time())
        self._is_lenient, self._metrics = is_lenient, metrics
        self._registry: Any = None  # made when metrics are first asked for: its library takes memory

    async def complete(
        self,
        read: Read,
        request: Request,
        kind: Callable[[Any, Backend], Told] = Reply,
        stream: type[EventStream] = EventStream,
    ) -> Response:
        """Answer one request, whole or as a `stream`, as `kind` has it. If the client leaves, the work ends."""
        (alone, wanted), headers = await read_body(
            request,
            partial(self._read_request, read),
            self._is_lenient,
            MAX_CHAT_BODY,
        )
        if isinstance(wanted, OllamaRequest) and not wanted.tasks:
            return json_response(without_prompt(wanted), headers)
        reply = kind(wanted, self._backend)
        reply.headers |= headers
        answer = self._backend.answering(request.scope)
        if alone:
            answer = by_itself(answer)
        chunks = merge(answer, wanted.tasks, wanted.respell, self._ending, self._waiting)
        if not wanted.stream:
            told = await run_while_connected(request.receive, whole(chunks, reply))
            return json_response(told, reply.headers)
        first = await run_while_connected(request.receive, read_first_chunks(chunks, len(wanted.tasks)))
        return stream(first, chunks, reply, self._heartbeat)

    def _read_request(self, read: Read, body: dict[str, Any]) -> tuple[bool, Asked]:
        """Whether the draft model alone is asked, and for what."""
        return takes_alone(body, self._backend), read(body, self._backend.info)

    async def models(self, request: Request) -> Response:
        cards = self._cards()
        return json_response(
            list_models(cards) if VERSION in request.headers else {"object": "list", "data": cards}
        )

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        for card in self._cards():
            if is_name(asked, card["id"]):
                return json_response(as_model(card) if VERSION in request.headers else card)
        raise NotFound(f"model {asked[:80]!r} not found; GET /v1/models lists what is served here", "model")

    def _cards(self) -> list[dict[str, Any]]:
        """What can be asked."""
        return [model_card(name, self._backend.info, self._created) for name in asked_names(self._backend)]

    async def openapi(self, request: Request) -> Response:
        return json_response(description(self._backend.info))

    async def status(self, request: Request) -> Response:
        return json_response(self._backend.status.figures())

    async def live(self, request: Request) -> Response:
        """Whether this process works. Needs no key, and therefore tells little."""
        return json_response({"status": "ok", "server": self._server})

    async def ready(self, request: Request) -> Response:
        """Whether a request would be answered now; raises Unreachable if not."""
        if reason := self._backend.unready:
            raise Unreachable(reason)
        return json_response({"status": "ready", "server": self._server})

    @property
    def _server(self) -> str:
        if self._backend.server_away:
            return "away"
        return "refuses" if self._backend.refusal else "reachable"

    async def metrics(self, request: Request) -> Response:
        """As on the port of --metrics."""
        self._registry = self._registry or registry(list(self._metrics))
        page, kind = page_of(self._registry)
        return Response(page, media_type=kind)
