"""The JSON of /v1/responses: a chat's reply, told as a response and its events."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

from http_api.backend import Backend
from http_api.requests import Request
from http_api.response_api.output_items import Event, ResponseOutput
from http_api.responses import Reply, named_event
from opensled.core.answer import Chunk

# A chat's finish reason -> the status of its last item, as far as that is whole.
STATUS = {"stop": "completed", "tool_calls": "completed", "length": "incomplete"}
# The same -> why the response is incomplete. OpenAI has no stop strings here, and no word for one that cuts a call or
# JSON.
CUT_BY = {"length": "max_output_tokens"}
# The type of an error -> the code that OpenAI has for it in a response; any other is server_error.
ERROR_CODES = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}


class ResponseReply(Reply):
    """The response to one request; its stream ends with the event that holds it whole."""

    end: tuple[bytes, ...] = ()

    def __init__(self, request: Request, backend: Backend) -> None:
        super().__init__(request, backend)
        self._id = f"resp_{secrets.token_hex(12)}"
        self._status = "in_progress"
        self._error: dict[str, str] | None = None
        self._cut_by: str | None = None
        guide = request.tasks[0].guide
        self._output = ResponseOutput(guide is not None and bool(guide.json_schema))
        self._told = 0  # events

    def opening(self) -> list[dict[str, Any]]:
        """The first events of a stream."""
        return self._number([self._about("created"), self._about("in_progress")])

    def push(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns the events that a stream sends."""
        # The log-probabilities are those of a text, and thoughts are none here
        listed = replace(
            chunk,
            logprobs=chunk.logprobs[chunk.thought_tokens :],
            token_ids=chunk.token_ids[chunk.thought_tokens :],
        )
        choices = [piece["choices"][0] for piece in super().push(index, listed)]
        return self._number([event for choice in choices for event in self._events(choice)])

    def closing(self) -> list[dict[str, Any]]:
        """The last event of a stream: the whole response."""
        return self._number([self._about(self._status)])

    def failure(self, error: dict[str, Any]) -> list[dict[str, Any]]:
        """The last events of a stream that ends with an error: the error, and the response as far as it came."""
        told = error["error"]
        closing = self._output.close("incomplete")
        self._status = "failed"
        self._error = {"code": ERROR_CODES.get(told["type"], "server_error"), "message": told["message"]}
        fault = {"type": "error", **{name: told[name] for name in ("code", "message", "param")}}
        return self._number([*closing, fault, self._about("failed")])

    def whole(self) -> dict[str, Any]:
        incomplete = self._status == "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._frame["created"],
            "completed_at": int(time.time()) if self._status == "completed" else None,
            "status": self._status,
            "error": self._error,
            "incomplete_details": {"reason": self._cut_by} if incomplete else None,
            "model": self._frame["model"],
            "system_fingerprint": self._frame["system_fingerprint"],
            "output": self._output.whole(),
            "usage": response_usage(self._usage()) if self._stats else None,
            **self._request.repeated,
            "background": False,
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
        }

    def event(self, payload: dict[str, Any]) -> bytes:
        return named_event(payload)

    def idle(self) -> dict[str, Any]:
        return self._number([self._about("in_progress")])[0]

    def _events(self, choice: dict[str, Any]) -> list[Event]:
        """What a piece of a chat's stream is in events."""
        delta = choice["delta"]
        if choice["finish_reason"]:
            reason = choice["finish_reason"]
            events = self._output.finish(STATUS[reason])
            self._status, self._cut_by = self._output.status, CUT_BY.get(reason)
            return events
        if "reasoning_content" in delta:
            return self._output.add_text(delta["reasoning_content"], [], True)
        if "content" in delta:
            logprobs = choice["logprobs"]["content"] if choice["logprobs"] else []
            return self._output.add_text(delta["content"], logprobs)
        call = delta["tool_calls"][0]
        if "id" in call:
            name = call["function"]["name"]
            return self._output.begin_call(call["id"], *self._request.namespaces.get(name, ("", name)))
        return self._output.add_arguments(call["function"]["arguments"])

    def _about(self, kind: str) -> Event:
        return {"type": f"response.{kind}", "response": self.whole()}

    def _number(self, events: list[Event]) -> list[dict[str, Any]]:
        numbered = [{**event, "sequence_number": self._told + at} for at, event in enumerate(events)]
        self._told += len(events)
        return numbered


def response_usage(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat's usage in the words of the Responses API."""
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {**chat["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": chat["completion_tokens_details"]["reasoning_tokens"],
        },
        "total_tokens": chat["total_tokens"],
        "opensled": chat["opensled"],
    }
