"""OpenAI's `/v1/completions`, as LM Studio, vLLM and many others serve it: text, as server-sent events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.http_stream import STREAM_TOKENS, fetch, read_object, sse_data
from edge_client.draft_servers.served_text import TextDialect, pieces_of
from edge_client.drafters.by_text import Piece
from opensled.core.errors import DraftSourceError

# In an entry, or a name, of a model without completions, as LM Studio, LocalAI, Lemonade and others list them
OTHERS = re.compile(
    r"embed|rerank|whisper|transcri|speech|\bimage|audio|bert\b|mmproj|minilm"
    r"|(?<![a-z0-9])(bge|tts|stt|clip|gpt-3\.5-turbo)",
    re.IGNORECASE,
)
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
        # An answer in one piece, from one without streams
        data = line if line.startswith(b'{"') else sse_data(line)
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


def writes_text(name: str, entry: dict[str, Any]) -> bool:
    """Whether a model writes text, as its entry says; as its name suggests where that says nothing."""
    told = [entry.get(key) for key in ("labels", "type", "capabilities", "task", "details")]
    said = str(
        [[each for each in one.items() if each[1]] if isinstance(one, dict) else one for one in told]
    ).lower()
    texts = r"\b(llm|vlm|chat|complet\w*|text.generation|reasoning|coding|tools?|tool.calling|vision)\b"
    return bool(re.search(texts, said)) or not (OTHERS.search(said) or OTHERS.search(name))


def list_models(address: DraftAddress) -> dict[str, dict[str, Any]]:
    """The models that a server lists, each with its entry. Raises DraftSourceError."""
    answer = fetch(address, "/v1/models")
    if not isinstance(answer.get("data", answer.get("models")), list) and answer.get("object") != "list":
        raise DraftSourceError("its /v1/models lists none")
    names = ("id", "name", "model")
    named = [(next(filter(None, map(entry.get, names)), None), entry) for entry in list_entries(answer)]
    return {name: entry for name, entry in named if isinstance(name, str)}


def writes_at(address: DraftAddress, model: str) -> bool:
    """Whether a model, which need not be listed, writes. Raises DraftSourceError, or NotFound where it is not there."""
    asked = {"model": model, "prompt": "The", "max_tokens": 1}
    return "choices" in fetch(address, CompletionsText.path, asked)


def context_of(entry: dict[str, Any]) -> int:
    """The tokens of a model's context; 0 = not told."""
    told = map(entry.get, ("max_model_len", "context_length", "max_context_length"))
    context = next(filter(None, told), 0)
    return context if isinstance(context, int) else 0
