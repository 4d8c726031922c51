"""The endpoints of Ollama's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from http_api.backend import Backend
from http_api.bodies import JSON, MAX_CHAT_BODY, read_body
from http_api.draft_alone import alone_name, by_itself, takes_alone
from http_api.event_stream import merge, read_first_chunks, run_while_connected, whole
from http_api.failures import HANDLERS
from http_api.fields import Fields
from http_api.model_names import asked_name, names_of
from http_api.ollama import models
from http_api.ollama.answer_lines import LineStream, OllamaReply, without_prompt
from http_api.ollama.ollama_requests import OllamaRequest, chat_request, generate_request
from http_api.responses import to_json
from http_api.token_routes import embeddings
from http_api.waiting_room import WaitingRoom
from opensled.core.errors import Unsupported
from opensled.core.messages import ModelInfo

# The Ollama whose requests are read here: the first one whose responses Codex takes. Clients compare it with what they
# need.
VERSION = "0.13.4"
RUNNING = "Ollama is running"  # the words that clients look for
PREFIX = "/api"  # of this API's paths
UNSERVED = ("push", "create", "copy", "delete")
EMBEDDINGS = ("embed", "embeddings")

Read = Callable[[dict[str, Any], ModelInfo], OllamaRequest]


def ollama_routes(
    backend: Backend, ending: asyncio.Event, heartbeat: float, is_lenient: bool, waiting: WaitingRoom
) -> list[BaseRoute]:
    """The routes of one backend; the arguments as of `build_app`."""
    api = OllamaApi(backend, ending, heartbeat, is_lenient, waiting)
    routes = [
        Route("/chat", partial(api.answer, chat_request), methods=["POST"]),
        Route("/generate", partial(api.answer, generate_request), methods=["POST"]),
        Route("/show", api.show, methods=["POST"]),
        Route("/pull", api.pull, methods=["POST"]),
        Route("/tags", api.tags),
        Route("/ps", api.ps),
        Route("/version", api.version),
        *(Route(f"/{name}", refuse, methods=["POST", "DELETE"]) for name in UNSERVED),
        *(Route(f"/{name}", embeddings, methods=["POST"]) for name in EMBEDDINGS),
    ]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    return [Mount(PREFIX, app)]


class OllamaApi:
    """The endpoints that tell of the backend or ask it."""

    def __init__(
        self,
        backend: Backend,
        ending: asyncio.Event,
        heartbeat: float,
        is_lenient: bool,
        waiting: WaitingRoom,
    ) -> None:
        self._backend, self._ending, self._waiting = backend, ending, waiting
        self._heartbeat, self._is_lenient = heartbeat, is_lenient
        self._since = models.timestamp()

    async def answer(self, read: Read, request: Request) -> Response:
        """Answer one request, whole or as a stream. If the client leaves, the work ends."""
        (alone, asked), headers = await read_body(
            request,
            partial(self._read_request, read),
            self._is_lenient,
            MAX_CHAT_BODY,
        )
        if asked.request is None:
            return _json(without_prompt(asked))
        reply = OllamaReply(asked, self._backend)
        reply.headers |= headers
        answer = self._backend.answering(request.scope)
        if alone:
            answer = by_itself(answer)
        chunks = merge(answer, [asked.task], asked.respell, self._ending, self._waiting)
        if not asked.stream:
            told = await run_while_connected(request.receive, whole(chunks, reply))
            return _json(told, reply.headers)
        first = await run_while_connected(request.receive, read_first_chunks(chunks, 1))
        return LineStream(first, chunks, reply, self._heartbeat)

    async def show(self, request: Request) -> Response:
        _, headers = await read_body(request, self._read_show, self._is_lenient)
        return _json(models.describe_model(self._backend.info, self._since), headers)

    async def pull(self, request: Request) -> Response:
        """The model of the server is here already; any other one cannot be had. Clients pull before they ask."""
        streams, headers = await read_body(request, self._read_pull, self._is_lenient)
        kind = LineStream.media_type if streams else JSON
        return Response(to_json({"status": "success"}) + b"\n", headers=headers, media_type=kind)

    def _read_pull(self, body: dict[str, Any]) -> bool:
        """Whether the answer is to come in lines."""
        takes_alone(body, self._backend)
        fields = Fields(body)
        for name in ("model", "name"):
            asked_name(fields, self._backend.info, name)
        fields.flag("insecure", False)
        streams = fields.flag("stream", True)
        fields.finish()
        return streams

    def _read_request(self, read: Read, body: dict[str, Any]) -> tuple[bool, OllamaRequest]:
        """Whether the draft model alone is asked, and for what."""
        return takes_alone(body, self._backend), read(body, self._backend.info)

    def _read_show(self, body: dict[str, Any]) -> None:
        takes_alone(body, self._backend)
        fields = Fields(body)
        asked_name(fields, self._backend.info)
        asked_name(fields, self._backend.info, "name")  # what `model` was called before
        fields.flag("verbose", False)
        fields.finish()

    async def tags(self, request: Request) -> Response:
        return _json(
            {"models": [models.tags_entry(name, self._backend.info, self._since) for name in self._names()]}
        )

    def _names(self) -> list[str]:
        """What can be asked."""
        info = self._backend.info
        return [*names_of(info), *([alone_name(info)] if self._backend.writes_alone else [])]

    async def ps(self, request: Request) -> Response:
        return _json({"models": [models.ps_entry(self._backend.info, self._since)]})

    async def version(self, request: Request) -> Response:
        return _json({"version": VERSION})


async def running(request: Request) -> Response:
    """What clients probe for; the same words everywhere."""
    return PlainTextResponse(RUNNING)


async def refuse(request: Request) -> Response:
    raise Unsupported(f"{request.url.path} is not supported: the server has one fixed model")


def _json(payload: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(payload), headers=headers, media_type="application/json")
