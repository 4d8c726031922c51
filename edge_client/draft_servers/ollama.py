"""Ollama's API: it goes on with a text, and streams one JSON object a line (docs/ollama.md is its other side)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import STREAM_TOKENS, fetch, read_object
from edge_client.draft_servers.served_text import TextDialect
from edge_client.drafters.by_text import Piece
from opensled.core.errors import DraftSourceError


class OllamaText(TextDialect):
    """`/api/generate` of one model; `raw`: without a chat template, which the text has from the target."""

    path = "/api/generate"

    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, prompt: str) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt,
            "raw": True,
            "stream": True,
            "options": {
                "temperature": 0,
                "top_k": 1,
                "repeat_penalty": 1.0,
                "num_predict": STREAM_TOKENS,
            },
        }

    def read(self, line: bytes) -> Sequence[Piece] | None:
        chunk = read_object(line)
        text = chunk.get("response") or ""
        if not isinstance(text, str):
            raise DraftSourceError("its chunk holds no text")
        pieces = [Piece(text.encode("utf-8", "replace"))] if text else []
        if chunk.get("done") is not True:
            return pieces
        if chunk.get("done_reason") == "stop":
            return [*pieces, Piece(b"", is_end=True)]
        return pieces or None


def list_models(address: DraftAddress) -> list[str]:
    """The models that an Ollama has. Raises DraftSourceError."""
    listed = fetch(address, "/api/tags").get("models")
    entries = listed if isinstance(listed, list) else []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]
