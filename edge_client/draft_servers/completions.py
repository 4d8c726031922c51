"""OpenAI's `/v1/completions`, as LM Studio, vLLM and many others serve it: text, as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import STREAM_TOKENS, fetch, read_object, sse_data
from edge_client.draft_servers.served_text import TextDialect, pieces_of
from edge_client.drafters.by_text import Piece
from opensled.core.errors import DraftSourceError

ENDS = ("stop", "eos", "eos_token", "stop_sequence")  # reasons to end that are the model's own


class CompletionsText(TextDialect):
    """The completions of one model."""

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, prompt: str) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": STREAM_TOKENS,
            "temperature": 0,
            "stream": True,
        }

    def read(self, line: bytes) -> Sequence[Piece] | None:
        data = (
            line if line.startswith(b'{"') else sse_data(line)
        )  # an answer in one piece, from one without streams
        if not data:
            return ()
        if data == b"[DONE]":
            return None
        choices = read_object(data).get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if not isinstance(choice, dict):
            return ()
        delta = choice.get("delta")
        text = choice.get("text", delta.get("content") if isinstance(delta, dict) else None)
        return pieces_of(text, choice.get("finish_reason") in ENDS)


def list_entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a list of models, in whatever form."""
    listed = answer.get("data") or answer.get("models") or []
    entries = listed if isinstance(listed, list) else []
    return [each if isinstance(each, dict) else {"id": each} for each in entries]


def list_models(address: DraftAddress) -> dict[str, int]:
    """The models that a server lists, and the tokens of their contexts (0 = not told). Raises DraftSourceError."""
    answer = fetch(address, "/v1/models")
    if not isinstance(answer.get("data", answer.get("models")), list):
        raise DraftSourceError("its /v1/models lists none")
    found: dict[str, int] = {}
    for entry in list_entries(answer):
        name = next(filter(None, map(entry.get, ("id", "name", "model"))), None)
        context = next(
            filter(None, map(entry.get, ("max_model_len", "context_length", "max_context_length"))), 0
        )
        if isinstance(name, str):
            found[name] = context if isinstance(context, int) else 0
    return found
