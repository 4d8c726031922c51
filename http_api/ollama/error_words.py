"""Errors as Ollama's API spells them: a status, and {"error": "what is wrong"}."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from http_api.failures import error_object, http_error_object, refused, refused_early
from opensled.errors import OpenSledError

PREFIX = "/api"  # of this API's paths
CLIENT_GONE = 499  # as in http_api/app.py, which imports this package


def told(body: dict[str, Any]) -> dict[str, Any]:
    """The body of an error in the form of OpenAI's API, in Ollama's form."""
    return {"error": body["error"]["message"]}


async def error_response(request: Request, error: Exception) -> Response:
    """The response to an exception of an endpoint."""
    return refused(error, told(error_object(error)))


async def http_error_response(request: Request, error: Exception) -> Response:
    """The response to a request refused before its fields are read: by its path, method or body."""
    assert isinstance(error, HTTPException)
    return refused_early(request, error, told(http_error_object(request, error)))


async def gone_response(request: Request, error: Exception) -> Response:
    """The end of a request whose client has left."""
    return Response(status_code=CLIENT_GONE)


HANDLERS: dict[Any, Any] = {
    OpenSledError: error_response,
    HTTPException: http_error_response,
    ClientDisconnect: gone_response,
    Exception: error_response,
}
