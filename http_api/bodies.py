"""The bodies of requests: their bytes, their JSON, and what a lenient API leaves out of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from http_api.backend import reading
from http_api.error_forms import OLLAMA
from http_api.fields import parse_object
from http_api.left_out import leaving_out, listed
from http_api.responses import to_json
from opensled.core.images import MAX_PROMPT_IMAGE_BYTES

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"  # what curl says if it is not told a type
LARGE = 64 << 10  # bytes; chosen: one of 3 MB takes half a second to read, one of these some milliseconds
MAX_BODY = 3 << 20  # bytes of a request; the server takes messages of 4 MiB
# The same with pictures, in base64; a history has some also where no model sees.
MAX_CHAT_BODY = MAX_BODY + 4 * MAX_PROMPT_IMAGE_BYTES // 3

T = TypeVar("T")


async def read_body(
    request: Request, read: Callable[[dict[str, Any]], T], is_lenient: bool, most: int = MAX_BODY
) -> tuple[T, dict[str, str]]:
    """What `read` makes of the JSON object in the body, and headers for the answer.

    A field without effect is left out and named in the headers; with `is_lenient` also one of unknown effect, which is
    an error otherwise. They also name what the grammar leaves out of a schema, and say that calls are not read.
    """
    body = await whole_body(request, most)

    def parse() -> tuple[T, dict[str, str]]:
        with leaving_out(is_lenient) as notes:
            found = read(parse_object(body))
            return found, {header: listed(texts) for header, texts in notes.items()}

    return await reading(request.scope, parse, len(body) > LARGE)


def json_response(payload: object, headers: Mapping[str, str] | None = None) -> Response:
    """The response that holds `payload`."""
    return Response(to_json(payload), headers=headers, media_type=JSON)


async def whole_body(request: Request, most: int = MAX_BODY) -> bytes:
    """All its bytes; raises HTTPException for another content type, a compressed body, or more than `most` bytes."""
    kind = re.split("[;,]", request.headers.get("content-type") or JSON)[0].strip().lower()
    # Clients name JSON in many ways, or send it as bytes. A page may send none of them to a foreign API unasked.
    if not re.search("json|application/octet-stream", kind) and not (kind == FORM and _by_curl(request)):
        raise HTTPException(415, f"this API reads {JSON}, not {kind[:80]}: send Content-Type: {JSON}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("identity", ""):
        raise HTTPException(
            415, f"this API reads no bodies in {packed[:80]}: send it without Content-Encoding"
        )
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            allowed = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
            raise HTTPException(413, f"the request is larger than {allowed}")
    return body


def _by_curl(request: Request) -> bool:
    """Whether a program, no browser, asks by Ollama's API, whose own examples are `curl -d` without a type."""
    told = any(name in request.headers for name in ("origin", "sec-fetch-site"))
    return request.url.path.startswith(OLLAMA) and not told
