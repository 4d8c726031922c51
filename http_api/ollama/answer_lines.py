"""The JSON of answers: lines of a stream, or one object."""

from __future__ import annotations

from typing import Any

from http_api.backend import Backend
from http_api.calls import reader_of
from http_api.choices import FINISH_REASONS, ChatLogprobs
from http_api.error_forms import as_ollama
from http_api.event_stream import EventStream
from http_api.model_names import alone_name
from http_api.ollama.models import timestamp
from http_api.ollama.ollama_requests import OllamaRequest
from http_api.ollama.whole_calls import Call, WholeCalls
from http_api.responses import LOCAL_HEADER, to_json, usage
from opensled.core.answer import LOCAL_ONLY, Chunk, Stats, first_unverified


class OllamaReply:
    """The answer to one request."""

    end: tuple[bytes, ...] = ()

    def __init__(self, asked: OllamaRequest, backend: Backend) -> None:
        self._asked, self._rule = asked, backend.rule
        (task,) = asked.tasks
        self._calls = WholeCalls(reader_of(task.guide, backend.info.calls))
        self._logprobs = None if task.top_logprobs is None else ChatLogprobs(backend.tokenizer)
        self._model, self._info = asked.model, backend.info
        self._text = self._thoughts = ""
        self._made: list[Call] = []
        self._entries: list[dict[str, Any]] = []
        self._end: dict[str, Any] = {}
        self.headers: dict[str, str] = {}  # by what was pushed so far

    def opening(self) -> list[dict[str, Any]]:
        return []

    def push(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns what a stream sends."""
        if author := first_unverified(chunk.origins):
            self.headers[LOCAL_HEADER] = LOCAL_ONLY
            self._model = alone_name(self._info, author)
        pieces = [self.piece(thoughts=chunk.thoughts)] if chunk.thoughts else []
        self._thoughts += chunk.thoughts
        pieces += [self._piece(found) for found in self._calls.push(chunk.text, bool(chunk.finish_reason))]
        entries = self._logprobs.of(chunk)["content"] if self._logprobs else []
        if entries:
            pieces = pieces or [self.piece()]
            pieces[0]["logprobs"] = entries
            self._entries += entries
        if chunk.finish_reason and chunk.stats:
            self._end = end_fields(FINISH_REASONS[chunk.finish_reason], chunk.stats, self._rule)
        return pieces

    def closing(self) -> list[dict[str, Any]]:
        """The last line of a stream: how the answer ended, and its figures."""
        return [{**self.piece(), **self._end}]

    def failure(self, error: dict[str, Any]) -> list[dict[str, Any]]:
        """The last line of a stream that ends with an error."""
        return [as_ollama(error)]

    def event(self, payload: dict[str, Any]) -> bytes:
        return to_json(payload) + b"\n"

    def heartbeat(self, status: str) -> bytes:
        """A line without text: these clients know no comments."""
        return self.event(self.piece())

    def whole(self) -> dict[str, Any]:
        logprobs = {"logprobs": self._entries} if self._logprobs else {}
        return {**self.piece(self._text, self._made, self._thoughts), **logprobs, **self._end}

    def piece(self, text: str = "", calls: list[Call] | None = None, thoughts: str = "") -> dict[str, Any]:
        """An object with this part of the answer, and no end."""
        return {**_frame(self._model), **_text_fields(self._asked, text, calls, thoughts), "done": False}

    def _piece(self, found: str | Call) -> dict[str, Any]:
        if isinstance(found, str):
            self._text += found
            return self.piece(found)
        self._made.append(found)
        return self.piece("", [found])


class LineStream(EventStream):
    """The answer as a JSON object a line."""

    media_type = "application/x-ndjson"


def without_prompt(asked: OllamaRequest) -> dict[str, Any]:
    """The answer to a request that only wants the model in memory, or out of it."""
    reason = "unload" if asked.unloads else "load"
    return {**_frame(asked.model), **_text_fields(asked, "", None), "done": True, "done_reason": reason}


def end_fields(reason: str, stats: Stats, rule: str) -> dict[str, Any]:
    """The end of an answer; durations in ns.

    `prompt_eval_duration` lasts to the first token, so it has the ways to the server and back, and the wait for a place
    there. Nothing is loaded for a request. `opensled` has our own figures, as in `usage` of the OpenAI API.
    """
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": _ns(stats.seconds),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": _ns(stats.first_token),
        "eval_count": stats.completion_tokens,
        "eval_duration": _ns(stats.seconds - stats.first_token),
        "opensled": usage(stats, rule)["opensled"],
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _frame(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": timestamp()}


def _text_fields(
    asked: OllamaRequest, text: str, calls: list[Call] | None, thoughts: str = ""
) -> dict[str, Any]:
    thought = {"thinking": thoughts} if thoughts else {}
    if not asked.is_chat:
        return {"response": text, **thought}
    made = {"tool_calls": calls} if calls else {}
    return {"message": {"role": "assistant", "content": text, **thought, **made}}
