"""OpenAI's `/v1/completions`, as LM Studio, vLLM and many others serve it: text, as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import STREAM_TOKENS, fetch, read_object, sse_data
from edge_client.draft_servers.served_text import TextDialect, pieces_of
from edge_client.drafters.by_text import Piece
from opensled.core.errors import DraftSourceError

EMBEDDINGS = "text-embedding"  # how LM Studio's names of models without completions begin


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
        data = sse_data(line)
        if not data:
            return ()
        if data == b"[DONE]":
            return None
        choices = read_object(data).get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if not isinstance(choice, dict):
            return ()
        return pieces_of(choice.get("text"), choice.get("finish_reason") == "stop")


def list_models(address: DraftAddress) -> list[str]:
    """The models that a server lists. Raises DraftSourceError where it has no such list."""
    listed = fetch(address, "/v1/models").get("data")
    if not isinstance(listed, list):
        raise DraftSourceError("its /v1/models lists none")
    names = [entry.get("id") for entry in listed if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and not name.startswith(EMBEDDINGS)]
