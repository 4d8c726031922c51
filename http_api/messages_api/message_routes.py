"""The endpoints of Anthropic's API: messages, and their tokens counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from http_api.messages_api.message_reply import CountReply, MessageReply
from http_api.messages_api.message_request import count_request, message_request


def message_routes(complete: Callable[..., Awaitable[Response]]) -> list[Route]:
    """Those of one API, whose `complete` answers requests (http_api/app.py)."""

    async def create(request: Request) -> Response:
        return await complete(partial(message_request, headers=request.headers), request, MessageReply)

    async def count(request: Request) -> Response:
        return await complete(partial(count_request, headers=request.headers), request, CountReply)

    return [
        Route("/v1/messages", create, methods=["POST"]),
        Route("/v1/messages/count_tokens", count, methods=["POST"]),
    ]


def list_models(cards: list[dict[str, Any]]) -> dict[str, Any]:
    """The models of these cards of OpenAI's form, in one page."""
    models = [as_model(card) for card in cards]
    ids = [model["id"] for model in models]
    return {"data": models, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


def as_model(card: dict[str, Any]) -> dict[str, Any]:
    """One of them."""
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": datetime.fromtimestamp(card["created"], timezone.utc).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
    }
