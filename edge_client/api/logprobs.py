"""Log-probabilities of an answer's tokens, in the two shapes clients know. They are the target's own, in nats, before
temperature and masks."""

from __future__ import annotations

import codecs
from typing import Any

from edge_client.answer import Chunk
from edge_client.tokenizer import EdgeTokenizer
from opensled.messages import TokenLogprobs

LOWEST = -9999.0  # OpenAI's number for a token that cannot come; JSON has no infinity


def listed(chunk: Chunk) -> tuple[tuple[int, TokenLogprobs], ...]:
    """The tokens of a chunk with their log-probabilities, without the end-of-sequence token, which has no text."""
    pairs = tuple(zip(chunk.token_ids, chunk.logprobs))
    return pairs[:-1] if chunk.finish_reason == "eos" else pairs


class ChatLogprobs:
    """{"content": [{token, logprob, bytes, top_logprobs}, ...]}"""

    def __init__(self, tokenizer: EdgeTokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, chunk: Chunk) -> dict[str, Any]:
        return {"content": [self._entry(at) for _, at in listed(chunk)], "refusal": None}

    def _entry(self, at: TokenLogprobs) -> dict[str, Any]:
        committed, *likeliest = at
        return {**self._token(*committed), "top_logprobs": [self._token(*token) for token in likeliest]}

    def _token(self, id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(id)
        text = raw.decode(errors="replace")
        return {"token": text, "logprob": max(LOWEST, logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """{"tokens": [...], "token_logprobs": [...], "top_logprobs": [{token: logprob}, ...], "text_offset": [...]}"""

    def __init__(self, tokenizer: EdgeTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0  # characters of the text so far

    def of(self, chunk: Chunk) -> dict[str, Any]:
        pairs = listed(chunk)
        return {
            "tokens": [self._spelling(id) for id, _ in pairs],
            "token_logprobs": [max(LOWEST, at[0][1]) for _, at in pairs],
            "top_logprobs": [self._likeliest(at) for _, at in pairs],
            "text_offset": [self._offset(id) for id, _ in pairs],
        }

    def _likeliest(self, at: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the committed token."""
        return {self._spelling(id): max(LOWEST, logprob) for id, logprob in (*at[1:], at[0])}

    def _offset(self, id: int) -> int:
        """Where the token begins in the text: after the characters that are complete before it."""
        offset = self._length
        if id not in self._tokenizer.special_ids:
            self._length += len(self._decoder.decode(self._tokenizer.token_bytes(id)))
        return offset

    def _spelling(self, id: int) -> str:
        """Its text; its bytes if they are no whole characters, so that no two tokens have the same name."""
        raw = self._tokenizer.token_bytes(id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
