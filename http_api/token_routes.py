"""POST /tokenize and /detokenize: the served model's tokens, for clients that count or cut texts by themselves.

The fields are vLLM's (`prompt`, `tokens`) or llama.cpp's (`content`, `tokens`). Nothing is asked of the target.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from http_api.backend import Backend, reading
from http_api.bodies import json_response, read_body
from http_api.chat_messages import token_ids
from http_api.fields import Fields, require_text
from http_api.model_names import asked_name
from opensled.core.bounds import MAX_CHARACTERS
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import ModelInfo

NO_EMBEDDINGS = (
    "embeddings are not served: the target writes text and gives none; run a server with an embedding model beside it, "
    "such as llama-server --embeddings, and give clients its address for embeddings"
)


def token_routes(backend: Backend, is_lenient: bool) -> list[BaseRoute]:
    """The routes of one backend; `is_lenient` as of `read_body`."""

    async def tokenize(request: Request) -> Response:
        (text, special, spelled), headers = await read_body(
            request, partial(_text, info=backend.info), is_lenient
        )
        encode = backend.tokenizer.encode if special else backend.tokenizer.encode_rendered
        # Megabytes take a second: not on the event loop
        ids = await reading(request.scope, partial(encode, text), True)
        told = {"count": len(ids), "max_model_len": backend.info.limits.context_length, "tokens": ids}
        pieces = [backend.tokenizer.piece(token) for token in ids] if spelled else None
        return json_response({**told, "token_strs": pieces}, headers)

    async def detokenize(request: Request) -> Response:
        ids, headers = await read_body(request, partial(_ids, info=backend.info), is_lenient)
        decode = partial(backend.tokenizer.decode, ids, special=True)
        text = await reading(request.scope, decode, True)
        return json_response({"prompt": text, "content": text}, headers)

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
    ]


def _text(body: dict[str, Any], info: ModelInfo) -> tuple[str, bool, bool]:
    """A text, whether the model's special tokens (such as BOS) are added, and whether the tokens are spelled out."""
    fields = Fields(body)
    asked_name(fields, info)
    by_llama = "content" in body
    field, add = ("content", "add_special") if by_llama else ("prompt", "add_special_tokens")
    if field not in body and "messages" in body:
        raise Unsupported(
            "messages are not read here: send prompt; the usage of an answer counts the tokens of a chat",
            "messages",
        )
    text, special = require_text(fields.raw(field), field), fields.flag(add, not by_llama)
    spelled = fields.read("tokenize").get("return_token_strs", False)
    fields.finish()
    most = MAX_CHARACTERS * info.limits.context_length
    if len(text) > most:
        raise InvalidRequest(f"{field} has {len(text)} characters; send {most} at a time at most", field)
    return text, special, spelled


def _ids(body: dict[str, Any], info: ModelInfo) -> tuple[int, ...]:
    fields = Fields(body)
    asked_name(fields, info)
    ids = token_ids(fields.raw("tokens"), "tokens", info)
    fields.finish()
    return ids


async def embeddings(request: Request) -> Response:
    """Refused, with the reason and the way."""
    raise Unsupported(NO_EMBEDDINGS)
