"""The answers of the page's own chat: pieces of text, each with the origin of its token.

The request is that of /v1/chat/completions; the page needs what that API does not tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from http_api import requests
from http_api.backend import Backend
from http_api.responses import to_json, usage
from opensled.core.answer import Chunk, Stats
from opensled.core.errors import Unsupported
from opensled.core.messages import ModelInfo
from opensled.text.painter import Painter


def page_request(body: dict[str, Any], info: ModelInfo) -> requests.Request:
    """One answer, as a stream. Raises as `chat_request` does; also for what the page cannot show."""
    found = requests.chat_request(body, info)
    if len(found.tasks) != 1:
        raise Unsupported("the page's chat has one answer: leave n out, or use /v1/chat/completions", "n")
    if found.tasks[0].stop:
        raise Unsupported("the page's chat cuts no text: leave stop out, or use /v1/chat/completions", "stop")
    return replace(found, stream=True)


class PageReply:
    """The pieces of one answer (`http_api.event_stream.Told`)."""

    end: tuple[bytes, ...] = ()

    def __init__(self, request: requests.Request, backend: Backend) -> None:
        self._painter = Painter(backend.tokenizer)
        self._rule = backend.rule
        self.headers: dict[str, str] = {}

    def opening(self) -> list[dict[str, Any]]:
        """Nothing: a page that has the status knows that the answer begins."""
        return []

    def push(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """What a chunk adds: pieces [text, origin], the same of thoughts, the guess of what follows, what goes on
        instead of text."""
        thoughts, pieces = self._painter.paint(chunk)
        news: dict[str, Any] = {"pieces": pieces}
        if thoughts:
            news["thoughts"] = thoughts
        if chunk.provisional:
            news["guess"] = chunk.provisional
        if chunk.status:
            news["status"] = chunk.status
        if chunk.finish_reason:
            news |= {
                "finish_reason": chunk.finish_reason,
                "usage": usage(chunk.stats or Stats(0, 0), self._rule),
            }
        return [news]

    def closing(self) -> list[dict[str, Any]]:
        """Nothing: the last chunk says how the answer ended."""
        return []

    def failure(self, error: dict[str, Any]) -> list[dict[str, Any]]:
        """The last event of an answer that an error ends."""
        return [error]

    def event(self, payload: dict[str, Any]) -> bytes:
        """A payload as a server-sent event."""
        return b"data: %s\n\n" % to_json(payload)

    def heartbeat(self, status: str) -> bytes:
        """Nothing: each status is in an event already."""
        return b""

    def whole(self) -> dict[str, Any]:
        """Never asked for, as `page_request` makes every answer a stream; so nothing of one is kept."""
        raise AssertionError("every answer of the page is a stream")
