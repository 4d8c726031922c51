"""A reader of one device's OpenAI API, as any app would be one."""

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from opensled.core.errors import OpenSledError


@dataclass
class StreamedReply:
    """One streamed answer as it grows."""

    text: str = ""
    finish_reason: str | None = None
    # Its "opensled" entry: rounds, drafted, accepted, ...
    usage: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # since `started`, of time.monotonic
    started: float = 0.0
    pieces: list[tuple[float, str]] = field(default_factory=list)  # of thoughts and text, and when each came
    timings: dict[str, Any] = field(default_factory=dict)  # what a llama-server tells of its drafts


async def ask(
    url: str,
    prompts: Sequence[dict[str, Any]],
    replies: list[StreamedReply],
    refresh: Callable[[], None] = lambda: None,
) -> None:
    """Chat prompts one after the other; `replies` grows as they are answered, and `refresh` hears of every event."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        for body in prompts:
            replies.append(StreamedReply())
            async for reply in stream_chat(http, body):
                replies[-1] = reply
                refresh()


def stream_chat(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[StreamedReply]:
    """POST a chat completion and yield the reply after each event; the last one is complete."""
    return _stream(http, "/v1/chat/completions", body)


def stream_completion(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[StreamedReply]:
    """Like `stream_chat`, for a prompt that is text or token ids."""
    return _stream(http, "/v1/completions", body)


async def _stream(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[StreamedReply]:
    try:
        async for reply in _events(http, path, body):
            yield reply
    except httpx.HTTPError as error:
        raise OpenSledError(f"the device at {http.base_url} broke off: {error}") from error


async def _events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[StreamedReply]:
    reply = StreamedReply(started=time.monotonic())
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", path, json=request) as response:
        if response.status_code != 200:
            raise OpenSledError(
                f"HTTP {response.status_code}: {(await response.aread()).decode(errors='replace')}"
            )
        async for line in response.aiter_lines():
            data = line.removeprefix("data:").strip()
            if line.startswith("data:") and data != "[DONE]":
                _absorb(reply, json.loads(data))
                reply.seconds = time.monotonic() - reply.started
                yield reply


def _absorb(reply: StreamedReply, event: dict[str, Any]) -> None:
    if error := event.get("error"):
        raise OpenSledError(error["message"] if isinstance(error, dict) else str(error))
    for choice in event.get("choices") or ():
        said = choice.get("delta") or {"content": choice.get("text")}
        reply.text += said.get("content") or ""
        if piece := said.get("content") or said.get("reasoning_content") or said.get("reasoning"):
            reply.pieces.append((time.monotonic(), piece))
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    reply.usage = event.get("usage") or reply.usage
    reply.timings = event.get("timings") or reply.timings
