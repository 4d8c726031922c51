"""The routes of the API over any Backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from edge_client.api import requests
from edge_client.api.backend import Backend
from edge_client.api.failures import error_response, http_error_response
from edge_client.api.fields import parse_object
from edge_client.api.responses import ChatForm, CompletionForm, model_card, to_json
from edge_client.api.stream import EventStream, Form, attended, first_of, whole
from opensled.errors import InvalidRequest, NotFound, OpenSledError
from opensled.messages import ModelInfo

MAX_BODY = 3 << 20  # bytes of a request; the server takes messages of 4 MiB
CLIENT_GONE = 499  # nobody reads it; nginx's number for the log

Read = Callable[[dict[str, Any], ModelInfo], requests.Request]


def build_app(backend: Backend) -> Starlette:
    """The ASGI application of one device."""
    api = Api(backend)
    chat = partial(api.complete, requests.chat_request, ChatForm)
    raw = partial(api.complete, requests.completion_request, CompletionForm)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", raw, methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/v1/models/{model:path}", api.model),
            Route("/health", api.health),
        ],
        exception_handlers={
            OpenSledError: error_response,
            HTTPException: http_error_response,
            Exception: error_response,
        },
    )


class Api:
    """The endpoints."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._created = int(time.time())

    async def complete(
        self, read: Read, make_form: Callable[[ModelInfo], Form], request: Request
    ) -> Response:
        """Answer one prompt, whole or as a stream; a client that leaves ends the work."""
        try:
            wanted = read(parse_object(await _body(request)), self._backend.info)
            chunks = self._backend.answer(wanted.prompt, wanted.params, wanted.stop)
            form = make_form(self._backend.info)
            if not wanted.stream:
                return _json(await attended(request.receive, whole(chunks, form)))
            first = await attended(request.receive, first_of(chunks))
            return EventStream(first, chunks, form, wanted.include_usage)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [model_card(self._backend.info, self._created)]})

    async def model(self, request: Request) -> Response:
        if request.path_params["model"] != self._backend.info.model_id:
            raise NotFound(f"this device serves {self._backend.info.model_id!r}; GET /v1/models", "model")
        return _json(model_card(self._backend.info, self._created))

    async def health(self, request: Request) -> Response:
        info = self._backend.info
        return _json({"status": "ok", "model": info.model_id, "version": info.version})


def _json(payload: object) -> Response:
    return Response(to_json(payload), media_type="application/json")


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise InvalidRequest(f"the request is larger than {MAX_BODY >> 20} MiB")
    return body
