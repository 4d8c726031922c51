"""The endpoints of Ollama's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from http_api.backend import Backend
from http_api.bodies import JSON, json_response, read_body
from http_api.failures import HANDLERS
from http_api.fields import Fields
from http_api.model_names import asked_name, asked_names, takes_alone
from http_api.ollama import models
from http_api.ollama.answer_lines import LineStream, OllamaReply
from http_api.ollama.ollama_requests import chat_request, generate_request
from http_api.responses import to_json
from http_api.token_routes import embeddings
from opensled.core.errors import Unsupported

# The Ollama whose requests are read here: the first one whose responses Codex takes. Clients compare it with what they
# need.
VERSION = "0.13.4"
RUNNING = "Ollama is running"  # the words that clients look for
PREFIX = "/api"  # of this API's paths
UNSERVED = ("push", "create", "copy", "delete")
EMBEDDINGS = ("embed", "embeddings")


def ollama_routes(
    backend: Backend, complete: Callable[..., Awaitable[Response]], is_lenient: bool
) -> list[BaseRoute]:
    """The routes of one backend; `complete` answers requests (http_api/app.py)."""
    api = OllamaApi(backend, is_lenient)
    answer = partial(complete, kind=OllamaReply, stream=LineStream)
    routes = [
        Route("/chat", partial(answer, chat_request), methods=["POST"]),
        Route("/generate", partial(answer, generate_request), methods=["POST"]),
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
    """The endpoints that tell of the backend."""

    def __init__(self, backend: Backend, is_lenient: bool) -> None:
        self._backend, self._is_lenient = backend, is_lenient
        self._since = models.timestamp()

    async def show(self, request: Request) -> Response:
        _, headers = await read_body(request, self._read_show, self._is_lenient)
        return json_response(models.describe_model(self._backend.info, self._since), headers)

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

    def _read_show(self, body: dict[str, Any]) -> None:
        takes_alone(body, self._backend)
        fields = Fields(body)
        asked_name(fields, self._backend.info)
        asked_name(fields, self._backend.info, "name")  # what `model` was called before
        fields.flag("verbose", False)
        fields.finish()

    async def tags(self, request: Request) -> Response:
        return json_response(
            {
                "models": [
                    models.tags_entry(name, self._backend.info, self._since)
                    for name in asked_names(self._backend)
                ]
            }
        )

    async def ps(self, request: Request) -> Response:
        return json_response({"models": [models.ps_entry(self._backend.info, self._since)]})

    async def version(self, request: Request) -> Response:
        return json_response({"version": VERSION})


async def running(request: Request) -> Response:
    """What clients probe for; the same words everywhere."""
    return PlainTextResponse(RUNNING)


async def refuse(request: Request) -> Response:
    raise Unsupported(f"{request.url.path} is not supported: the server has one fixed model")
