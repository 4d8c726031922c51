"""The JSON of responses, whole or in pieces."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from http_api.backend import Backend
from http_api.calls import reader_of
from http_api.choices import (
    ChatChoice,
    ChatLogprobs,
    Choice,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
)
from http_api.model_names import alone_name
from http_api.requests import Request
from opensled.core.answer import LOCAL_ONLY, Chunk, Origin, Stats, Task, first_unverified
from opensled.core.messages import ModelInfo, Prompt
from opensled.text.tokenizer import TargetTokenizer

LOCAL_HEADER = "OpenSLED-Answer"  # of a response with text that no target has verified


def to_json(payload: object) -> bytes:
    """ASCII only, so that a lone surrogate quoted from a bad request can be encoded too."""
    return json.dumps(payload, separators=(",", ":")).encode("ascii")


def named_event(payload: dict[str, Any]) -> bytes:
    """A server-sent event that is named as its data says."""
    return b"event: %s\ndata: %s\n\n" % (payload["type"].encode(), to_json(payload))


def usage(stats: Stats, rule: str) -> dict[str, Any]:
    """OpenAI's object `usage`; our other figures are under `opensled`."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "total_tokens": stats.prompt_tokens + stats.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": stats.thought_tokens,
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.drafted - stats.accepted,
        },
        "opensled": {
            "rule": LOCAL_ONLY if stats.local_tokens else stats.rule or rule,
            **stats.figures(),
        },
    }


def total(choices: Sequence[Stats], per_prompt: int) -> Stats:
    """The statistics of all choices together; a prompt counts once, however many answers it has."""
    counted = [item.name for item in fields(Stats) if item.name != "rule"]
    sums = {name: sum(getattr(stats, name) for stats in choices) for name in counted}
    sums["prompt_tokens"] = sum(stats.prompt_tokens for stats in choices[::per_prompt])
    cached = [stats.cached_tokens for stats in choices]  # but one of a prompt's answers may have computed it
    sums["cached_tokens"] = sum(
        min(cached[first : first + per_prompt]) for first in range(0, len(cached), per_prompt)
    )
    for name in ("first_token", "seconds"):
        sums[name] = max(getattr(stats, name) for stats in choices)
    return Stats(**sums, rule=choices[0].rule)


def fingerprint(info: ModelInfo, rule: str) -> str:
    """What decides whether equal seeds give equal answers: release, model, numerics level and acceptance rule."""
    return f"opensled-{info.version}/{info.model_id}/{info.numerics}/{rule}"


def local_fingerprint(info: ModelInfo, author: Origin = "local") -> str:
    """The fingerprint of text that the draft model, or a relay's, wrote alone, without a target or a rule."""
    return f"opensled-{info.version}/{'relay' if author == 'relay' else 'draft'}-model/{LOCAL_ONLY}"


def model_card(name: str, info: ModelInfo, created: int) -> dict[str, Any]:
    """OpenAI's object `model` of that name; `created` in unix seconds."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "opensled",
        "max_model_len": info.limits.context_length,
    }


class Reply:
    """The response to one request: what its choices share, and their statistics."""

    end: tuple[bytes, ...] = (b"data: [DONE]\n\n",)  # what a stream sends after its last payload

    def __init__(self, request: Request, backend: Backend) -> None:
        self._request, self._rule = request, backend.rule
        self._choices = [_choice(index, task, request, backend) for index, task in enumerate(request.tasks)]
        # Those of a chat, all of whose choices have one prompt
        asked = request.is_chat and request.prompt_logprobs is not None
        self._prompt = PromptLogprobs(backend.tokenizer, request.prompt_logprobs or 0) if asked else None
        self._stats: dict[int, Stats] = {}
        info = backend.info
        self._info = info
        self.headers: dict[str, str] = {}  # by what was pushed so far
        prefix, kind = ("chatcmpl", "chat.completion") if request.is_chat else ("cmpl", "text_completion")
        self._kind = kind
        self._frame: dict[str, Any] = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if request.is_chat and request.stream else kind,
            "created": int(time.time()),  # unix seconds
            "model": backend.info.model_id,
            "system_fingerprint": fingerprint(backend.info, backend.rule),
        }

    def opening(self) -> list[dict[str, Any]]:
        """The first payloads of a stream."""
        return [self._piece(piece) for choice in self._choices if (piece := choice.opening())]

    def push(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk of a choice; returns what a stream sends."""
        if chunk.stats:
            self._stats[index] = chunk.stats
        if self._prompt and index == 0:
            self._prompt.push(chunk.prompt)
        if author := first_unverified(chunk.origins):
            self._frame |= {
                "model": alone_name(self._info, author),
                "system_fingerprint": local_fingerprint(self._info, author),
            }
            self.headers[LOCAL_HEADER] = LOCAL_ONLY
        return [self._piece(piece) for piece in self._choices[index].push(chunk)]

    def whole(self) -> dict[str, Any]:
        choices = [choice.whole() for choice in self._choices]
        more = {"prompt_logprobs": self._prompt.places} if self._prompt else {}
        return {**self._frame, "choices": choices, "usage": self._usage(), **more}

    def closing(self) -> list[dict[str, Any]]:
        """The last payload of a stream: the usage, if the request asks for it."""
        if not self._request.include_usage:
            return []
        return [{**self._frame, "choices": [], "usage": self._usage()}]

    def failure(self, error: dict[str, Any]) -> list[dict[str, Any]]:
        """The last payloads of a stream that ends with an error, given as the body of an error."""
        return [error]

    def event(self, payload: dict[str, Any]) -> bytes:
        """A payload as a server-sent event."""
        return b"data: %s\n\n" % to_json(payload)

    def heartbeat(self, status: str) -> bytes:
        """A comment before a piece without news: a comment alone is an event without data to some clients."""
        return b": %s\n%s" % (status.encode(), self.event(self.idle()))

    def idle(self) -> dict[str, Any]:
        """A piece of a stream that adds nothing."""
        return self._piece(self._choices[0].idle())

    def _usage(self) -> dict[str, Any]:
        stats = [self._stats[index] for index in range(len(self._choices))]
        return usage(total(stats, self._request.per_prompt), self._rule)

    def _piece(self, choice: dict[str, Any]) -> dict[str, Any]:
        """With include_usage every piece has the field, and only the last one a value."""
        more = {"usage": None} if self._request.include_usage else {}
        return {**self._frame, "choices": [choice], **more}


def _choice(index: int, task: Task, request: Request, backend: Backend) -> Choice:
    logged, tokenizer = task.top_logprobs is not None, backend.tokenizer
    if request.is_chat:
        logprobs = ChatLogprobs(tokenizer) if logged else None
        return ChatChoice(index, logprobs, reader_of(task.guide, backend.info.calls), request.shows_thoughts)
    echo = _text_of(task.prompt, tokenizer) if request.echo else None
    asked = request.prompt_logprobs
    return CompletionChoice(
        index,
        CompletionLogprobs(tokenizer, task.top_logprobs or 0, echo) if logged else None,
        echo or "",
        None if asked is None else PromptLogprobs(tokenizer, asked),
    )


def _text_of(prompt: Prompt, tokenizer: TargetTokenizer) -> str:
    if isinstance(prompt, str):
        return prompt
    return tokenizer.decode([token for token in prompt if isinstance(token, int)])
