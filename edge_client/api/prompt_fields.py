"""What is to be continued, from JSON: the field `prompt` of /v1/completions, and lists of token ids in general."""

from __future__ import annotations

from edge_client.api.fields import as_integer, require_text
from opensled.errors import InvalidRequest
from opensled.messages import ModelInfo, Prompt

MAX_PROMPTS = 8  # in one request


def read_prompts(value: object, info: ModelInfo) -> tuple[Prompt, ...]:
    """Texts or lists of token ids: one of them, or a list."""
    if isinstance(value, str):
        return (require_text(value, "prompt"),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("prompt must be a string, a list of token ids, or a list of either", "prompt")
    if not isinstance(value[0], (str, list)):
        return (token_ids(value, "prompt", info),)
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt may hold at most {MAX_PROMPTS} prompts", "prompt")
    if isinstance(value[0], str):
        return tuple(require_text(text, "prompt") for text in value)
    return tuple(_some_ids(ids, info) for ids in value)


def _some_ids(value: object, info: ModelInfo) -> tuple[int, ...]:
    ids = token_ids(value, "prompt", info)
    if not ids:
        raise InvalidRequest("prompt has a list without a token id", "prompt")
    return ids


def token_ids(value: object, name: str, info: ModelInfo) -> tuple[int, ...]:
    """A list of ids of the vocabulary; raises InvalidRequest for `name`."""
    ids = [as_integer(token) for token in value] if isinstance(value, list) else [None]
    if None in ids:
        raise InvalidRequest(f"{name} must be a list of token ids", name)
    known = tuple(token for token in ids if token is not None and 0 <= token < info.vocab_size)
    if len(known) < len(ids):
        raise InvalidRequest(f"{name} has an id outside the vocabulary of {info.vocab_size}", name)
    return known
