"""What clients get: the JSON of answers, whole or in pieces."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from edge_client.answer import Stats
from opensled.messages import ModelInfo

# The API knows one word for "the model or a stop string ended it".
FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


def to_json(payload: object) -> bytes:
    """Pure ASCII, so that even a lone surrogate quoted from a bad request has a form."""
    return json.dumps(payload, separators=(",", ":")).encode("ascii")


def usage(stats: Stats) -> dict[str, Any]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "total_tokens": stats.prompt_tokens + stats.completion_tokens,
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.drafted - stats.accepted,
        },
        "opensled": stats.figures(),
    }


def fingerprint(info: ModelInfo) -> str:
    """Names what decides about equal answers to equal seeds: the model and its numerics level."""
    return f"opensled-{info.version}/{info.model_id}/{info.numerics}"


def model_card(info: ModelInfo, created: int) -> dict[str, Any]:
    return {
        "id": info.model_id,
        "object": "model",
        "created": created,
        "owned_by": "opensled",
        "max_model_len": info.limits.context_length,
    }


def _new_id() -> str:
    return secrets.token_hex(12)


def _now() -> int:
    return int(time.time())


@dataclass(frozen=True)
class _Answer:
    """What all pieces of one answer share."""

    info: ModelInfo
    id: str = field(default_factory=_new_id)
    created: int = field(default_factory=_now)  # unix seconds


class ChatForm(_Answer):
    """The shape of one chat answer."""

    def whole(self, text: str, reason: str, stats: Stats) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH_REASONS[reason]}
        return self._frame("chat.completion", [choice], usage=usage(stats))

    def first(self) -> dict[str, Any] | None:
        return self._piece({"role": "assistant", "content": ""})

    def piece(self, text: str) -> dict[str, Any]:
        return self._piece({"content": text})

    def last(self, reason: str) -> dict[str, Any]:
        return self._piece({}, FINISH_REASONS[reason])

    def account(self, stats: Stats) -> dict[str, Any]:
        return self._frame("chat.completion.chunk", [], usage=usage(stats))

    def _piece(self, delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._frame("chat.completion.chunk", [choice])

    def _frame(self, kind: str, choices: list[Any], **more: object) -> dict[str, Any]:
        return _frame(f"chatcmpl-{self.id}", kind, self.created, self.info, choices, **more)


class CompletionForm(_Answer):
    """The shape of one raw completion."""

    def whole(self, text: str, reason: str, stats: Stats) -> dict[str, Any]:
        return self._frame(text, FINISH_REASONS[reason], usage=usage(stats))

    def first(self) -> dict[str, Any] | None:
        return None

    def piece(self, text: str) -> dict[str, Any]:
        return self._frame(text, None)

    def last(self, reason: str) -> dict[str, Any]:
        return self._frame("", FINISH_REASONS[reason])

    def account(self, stats: Stats) -> dict[str, Any]:
        return {**self._frame("", None), "choices": [], "usage": usage(stats)}

    def _frame(self, text: str, reason: str | None, **more: object) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return _frame(f"cmpl-{self.id}", "text_completion", self.created, self.info, [choice], **more)


def _frame(
    id: str, kind: str, created: int, info: ModelInfo, choices: list[Any], **more: object
) -> dict[str, Any]:
    return {
        "id": id,
        "object": kind,
        "created": created,
        "model": info.model_id,
        "system_fingerprint": fingerprint(info),
        "choices": choices,
        **more,
    }
