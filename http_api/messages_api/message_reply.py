"""The JSON of /v1/messages: a chat's reply, told as a message and its events; and of /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from typing import Any

from http_api.backend import Backend
from http_api.error_forms import as_anthropic
from http_api.messages_api.message_blocks import Event, MessageContent
from http_api.requests import Request
from http_api.responses import Reply, named_event
from opensled.core.answer import Chunk

# A chat's finish reason -> the stop reason, unless a stop sequence is one
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


class MessageReply(Reply):
    """The message that answers one request."""

    end: tuple[bytes, ...] = ()

    def __init__(self, request: Request, backend: Backend) -> None:
        super().__init__(request, backend)
        self._id = f"msg_{secrets.token_hex(12)}"
        self._content = MessageContent()
        self._stop: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}

    def opening(self) -> list[dict[str, Any]]:
        """The first event of a stream. The tokens of the prompt are known at its end."""
        return [{"type": "message_start", "message": self.whole()}]

    def push(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns the events that a stream sends."""
        choices = [piece["choices"][0] for piece in super().push(index, chunk)]
        return [event for choice in choices for event in self._events(choice, chunk.stopped_by)]

    def closing(self) -> list[dict[str, Any]]:
        """The last events of a stream: why it ended, and the usage."""
        ended = {"type": "message_delta", "delta": self._stop, "usage": message_usage(self._usage())}
        return [ended, {"type": "message_stop"}]

    def failure(self, error: dict[str, Any]) -> list[dict[str, Any]]:
        """The last event of a stream that ends with an error."""
        return [as_anthropic(error)]

    def event(self, payload: dict[str, Any]) -> bytes:
        return named_event(payload)

    def heartbeat(self, status: str) -> bytes:
        return named_event({"type": "ping"})

    def whole(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._frame["model"],
            "content": self._content.whole(),
            **self._stop,
            "usage": message_usage(self._usage()) if self._stats else dict.fromkeys(COUNTS, 0),
        }

    def _events(self, choice: dict[str, Any], stopped_by: str) -> list[Event]:
        """What a piece of a chat's stream is in events."""
        delta, reason = choice["delta"], choice["finish_reason"]
        if reason:
            by_string = stopped_by if reason == "stop" else ""
            self._stop = {
                "stop_reason": "stop_sequence" if by_string else STOP_REASONS[reason],
                "stop_sequence": by_string or None,
            }
            return self._content.close()
        if "reasoning_content" in delta:
            return self._content.add_thought(delta["reasoning_content"])
        if "content" in delta:
            return self._content.add_text(delta["content"])
        call = delta["tool_calls"][0]
        if "id" in call:
            return self._content.begin_call(call["id"].replace("call_", "toolu_"), call["function"]["name"])
        return self._content.add_input(call["function"]["arguments"])


class CountReply(Reply):
    """How many tokens a prompt has."""

    def whole(self) -> dict[str, Any]:
        return {"input_tokens": self._stats[0].prompt_tokens}


def message_usage(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat's usage as Anthropic counts: what was found in the cache is no input beside it."""
    cached = chat["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": chat["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": chat["completion_tokens"],
        "opensled": chat["opensled"],
    }
