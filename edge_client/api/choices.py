"""One choice of a response: the pieces that a stream sends, and the whole object."""

from __future__ import annotations

import secrets
from typing import Any

from edge_client.answer import Chunk
from edge_client.api.calls import AnswerPiece, CallReader, CallStart, PlainText
from edge_client.api.logprobs import ChatLogprobs, CompletionLogprobs

# The API has one name for the end by the model and by a stop string.
FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


class ChatChoice:
    """Choice number `index` of a chat; `logprobs` and `calls` if the request asks for them."""

    def __init__(self, index: int, logprobs: ChatLogprobs | None, calls: CallReader | None) -> None:
        self._index, self._logprobs, self._reader = index, logprobs, calls
        self._content = ""
        self._calls: list[dict[str, Any]] = []
        self._entries: list[dict[str, Any]] = []
        self._reason: str | None = None

    def opening(self) -> dict[str, Any] | None:
        return self._piece({"role": "assistant", "content": ""})

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns the pieces that a stream sends."""
        deltas = [self._delta(piece) for piece in self._pieces(chunk)]
        logprobs = self._logprobs.of(chunk) if self._logprobs else None
        if logprobs and logprobs["content"]:
            self._entries += logprobs["content"]
            deltas = deltas or [{"content": ""}]
        pieces = [self._piece(delta) for delta in deltas]
        if logprobs and pieces:
            pieces[0]["logprobs"] = logprobs
        if chunk.finish_reason:
            self._reason = self._reason_of(chunk.finish_reason)
            pieces.append({**self._piece({}), "finish_reason": self._reason})
        return pieces

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if self._calls:
            message |= {"content": self._content or None, "tool_calls": self._calls}
        logprobs = {"content": self._entries, "refusal": None} if self._logprobs else None
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": self._reason}

    def _pieces(self, chunk: Chunk) -> list[AnswerPiece]:
        if self._reader is None:
            return [PlainText(chunk.text)] if chunk.text else []
        return self._reader.push(chunk.text) + (self._reader.flush() if chunk.finish_reason else [])

    def _delta(self, piece: AnswerPiece) -> dict[str, Any]:
        if isinstance(piece, PlainText):
            self._content += piece.text
            return {"content": piece.text}
        if isinstance(piece, CallStart):
            function = {"name": piece.name, "arguments": ""}
            self._calls.append(
                {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": dict(function)}
            )
            news = {**self._calls[-1], "function": function}
        else:
            self._calls[-1]["function"]["arguments"] += piece.text
            news = {"function": {"arguments": piece.text}}
        return {"tool_calls": [{"index": len(self._calls) - 1, **news}]}

    def _reason_of(self, reason: str) -> str:
        """Complete tool calls are a reason of their own."""
        known = FINISH_REASONS[reason]
        return "tool_calls" if self._calls and known == "stop" else known

    def _piece(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


class CompletionChoice:
    """Choice number `index` of a completion; it begins with `echo`, its prompt or ""."""

    def __init__(self, index: int, logprobs: CompletionLogprobs | None, echo: str) -> None:
        self._index, self._logprobs, self._text = index, logprobs, echo
        self._lists: dict[str, list[Any]] = {}
        self._reason: str | None = None

    def opening(self) -> dict[str, Any] | None:
        return self._piece(self._text) if self._text else None

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Take a chunk; returns the pieces that a stream sends."""
        self._text += chunk.text
        logprobs = self._logprobs.of(chunk) if self._logprobs else None
        for name, values in (logprobs or {}).items():
            self._lists.setdefault(name, []).extend(values)
        shows = chunk.text or (logprobs and logprobs["tokens"])
        pieces = [{**self._piece(chunk.text), "logprobs": logprobs}] if shows else []
        if chunk.finish_reason:
            self._reason = FINISH_REASONS[chunk.finish_reason]
            pieces.append({**self._piece(""), "finish_reason": self._reason})
        return pieces

    def whole(self) -> dict[str, Any]:
        logprobs = self._lists if self._logprobs else None
        return {**self._piece(self._text), "logprobs": logprobs, "finish_reason": self._reason}

    def _piece(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}


Choice = ChatChoice | CompletionChoice
