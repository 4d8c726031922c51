"""What llama.cpp's server takes and gives in its own API, over HTTP or in process: tokens with their candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from edge_client.draft_servers.http_stream import STREAM_TOKENS
from edge_client.drafters.streamed import Scored
from opensled.core.errors import DraftSourceError
from opensled.text.tokenizer import TargetTokenizer

MAX_ID = 1 << 31


def completion(prompt: Sequence[int] | str, candidates: int, slot: int) -> dict[str, Any]:
    """A request for the likeliest continuation of `prompt`, token by token. `slot`: whose cache has its beginning."""
    return {
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "n_predict": STREAM_TOKENS,
        "stream": True,
        "cache_prompt": True,
        "id_slot": slot,
        "return_tokens": True,
        "n_probs": candidates,
        "temperature": 0,
        "samplers": ["top_k"],
        "top_k": 1,
        "logit_bias": [],
    }


def is_last(chunk: dict[str, Any]) -> bool:
    """Whether the stream ends with this chunk."""
    return chunk.get("stop") is True


class TokenChunks:
    """Reads the chunks of streams over ids that mean the same to the target."""

    def __init__(self, tokenizer: TargetTokenizer) -> None:
        self._tokenizer = tokenizer

    def read(self, chunk: dict[str, Any], candidates: int) -> list[Scored]:
        """The tokens of a chunk. Raises DraftSourceError for what is none.

        The server gives no chunk for a token that ends within a character. The chunk that completes the character has
        the text of them all, so the lost ids follow from it.
        """
        ids, content = chunk.get("tokens") or [], chunk.get("content") or ""
        if not (isinstance(ids, list) and isinstance(content, str) and all(map(is_id, ids))):
            raise DraftSourceError("its chunk holds no list of token ids")
        tokens = [Scored(id, *read_candidates(chunk, candidates)) for id in ids]
        text = content.encode("utf-8", "surrogatepass")
        if len(ids) != 1 or len(text) <= len(self._tokenizer.token_bytes(ids[0])):
            return tokens
        return [*(Scored(id) for id in self._lost(content, text, ids[0])), *tokens]

    def _lost(self, content: str, text: bytes, last: int) -> Sequence[int]:
        """The ids before `last` of a text. Raises DraftSourceError where they cannot be told."""
        ids = self._tokenizer.encode_rendered(content)
        if ids[-1] != last or b"".join(map(self._tokenizer.token_bytes, ids)) != text:
            raise DraftSourceError("it left out tokens of a character")
        return ids[:-1]


def is_id(value: object) -> bool:
    """Whether a value of JSON can be a token id."""
    return type(value) is int and 0 <= value < MAX_ID


def read_candidates(chunk: dict[str, Any], most: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and logarithms of a chunk's candidates; none where it has none. Raises DraftSourceError."""
    try:
        listed = chunk["completion_probabilities"][0]["top_logprobs"] if most else ()
        found = {entry["id"]: float(entry["logprob"]) for entry in listed[:most]}
    except (LookupError, TypeError):
        return (), ()
    except (ValueError, OverflowError) as error:
        raise DraftSourceError("a candidate's logprob is no number") from error
    if not all(map(is_id, found)) or not all(map(math.isfinite, found.values())):
        raise DraftSourceError("a candidate has no id, or a logprob that is not finite")
    return tuple(found), tuple([min(logprob, 0.0) for logprob in found.values()])
