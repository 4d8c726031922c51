"""Ollama's API: it goes on with a text, and streams one JSON object a line (docs/ollama.md is its other side)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import STREAM_TOKENS, fetch, read_object
from edge_client.draft_servers.served_text import TextDialect, pieces_of
from edge_client.drafters.by_text import Piece
from opensled.core.errors import DraftSourceError, NotFound


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
        is_done = chunk.get("done") is True
        pieces = pieces_of(chunk.get("response"), is_done and chunk.get("done_reason") == "stop")
        return pieces or (None if is_done else ())


def list_models(address: DraftAddress) -> dict[str, dict[str, Any]]:
    """The models that an Ollama has, each with its entry. Raises DraftSourceError or NotFound for another server."""
    listed = (
        fetch(address, "/api/tags").get("models") if "version" in fetch(address, "/api/version") else None
    )
    if not isinstance(listed, list):
        raise DraftSourceError("its /api/tags are not those of an Ollama")
    _require_generate(address)
    named = [(entry.get("name", entry.get("model")), entry) for entry in listed if isinstance(entry, dict)]
    return {name: entry for name, entry in named if isinstance(name, str)}


def _require_generate(address: DraftAddress) -> None:
    """Raises NotFound for a server that only lists as Ollama does, which itself answers that a model is not found."""
    try:
        fetch(address, OllamaText.path, {"model": ""})
    except NotFound as error:
        if "model" not in str(error):
            raise
    except DraftSourceError:
        pass  # it wants a whole request


def is_remote(name: str, entry: dict[str, Any]) -> bool:
    """Whether an Ollama sends a model's texts to another machine, such as ollama.com."""
    return bool(entry.get("remote_host") or entry.get("remote_model") or name.endswith((":cloud", "-cloud")))
