"""Errors as responses: a status, and an object that names cause and field, in the form of the API that was asked."""

from __future__ import annotations

import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from http_api.error_forms import in_form_of
from http_api.exchange import current
from http_api.responses import to_json
from opensled.core.errors import (
    InvalidRequest,
    NotFound,
    OpenSledError,
    Overloaded,
    RequestError,
    Unauthorized,
    Unreachable,
    Unsupported,
)

# class -> (HTTP status, OpenAI's error type); any other error is 500
STATUS: dict[type[OpenSledError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    Unsupported: (400, "invalid_request_error"),
    NotFound: (404, "invalid_request_error"),
    Unauthorized: (401, "authentication_error"),
    Overloaded: (429, "rate_limit_error"),
    Unreachable: (503, "server_error"),
}
HTTP_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_content_type",
}
CLIENT_GONE = 499  # no client reads it; nginx logs this number
QUOTED = 100  # characters of a path shown in an error
RETRY_AFTER = 1  # seconds, if the error has no number of its own


def status_of(error: Exception) -> tuple[int, str]:
    """HTTP status and OpenAI's error type."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500, "server_error"


def error_object(error: Exception) -> dict[str, Any]:
    """The body. The cause of an unexpected exception is only in the log."""
    field = error.field if isinstance(error, RequestError) else ""
    kind = status_of(error)[1]
    if isinstance(error, OpenSledError):
        return error_body(str(error), kind, error.code, field)
    return error_body("internal error; the log of this API has the cause", kind, code_of(error))


def code_of(error: Exception) -> str:
    """What a client is told of the kind of an error."""
    return error.code if isinstance(error, OpenSledError) else OpenSledError.code


def error_body(message: str, type: str, code: str, param: str = "") -> dict[str, Any]:
    """The body as OpenAI's API sends it; `param` names the field at fault, "" = none."""
    return {"error": {"message": message, "type": type, "param": param or None, "code": code}}


async def error_response(request: Request, error: Exception) -> Response:
    """The response to an exception of an endpoint."""
    return refusal(request.url.path, error)


def refusal(path: str, error: Exception) -> Response:
    """The response to `error`: its status, and when to ask again."""
    status, _ = status_of(error)
    headers = {"Retry-After": str(_retry_after(error))} if status in (429, 503) else None
    current().code = code_of(error)
    body = in_form_of(path, error_object(error))
    return Response(to_json(body), status, headers, "application/json")


def _retry_after(error: Exception) -> int:
    seconds = error.retry_after if isinstance(error, RequestError) else 0.0
    return max(RETRY_AFTER, math.ceil(seconds))


async def http_error_response(request: Request, error: Exception) -> Response:
    """The response to a request refused before its fields are read: by its path, method or body.

    OPTIONS, with which balancers probe, is told the methods of its path.
    """
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=error.headers)
    told = _http_error_object(request, error)
    current().code = told["error"]["code"]
    body = to_json(in_form_of(request.url.path, told))
    return Response(body, error.status_code, error.headers, "application/json")


async def gone_response(request: Request, error: Exception) -> Response:
    """The end of a request whose client has left."""
    return Response(status_code=CLIENT_GONE)


HANDLERS: dict[Any, Any] = {
    OpenSledError: error_response,
    HTTPException: http_error_response,
    ClientDisconnect: gone_response,
    Exception: error_response,
}


def _http_error_object(request: Request, error: HTTPException) -> dict[str, Any]:
    """Its body in OpenAI's form."""
    way = "; GET /openapi.json lists the paths" if error.status_code == 404 else ""
    if error.headers and "Allow" in error.headers:
        way = f"; it takes {error.headers['Allow']}"
    message = f"{error.detail}: {request.method} {request.url.path[:QUOTED]}{way}"
    code = HTTP_CODES.get(error.status_code, "invalid_request")
    return error_body(message, "invalid_request_error", code)
