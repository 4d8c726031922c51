"""The target's tokenizer and chat template: this server is the one authority on both."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import ChatMessage
from opensled.vocabulary import fingerprint


class TargetText:
    """Encodes prompts with the tokenizer that lies in the model's folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, use_fast=True)
        self.tokenizer_json = self._tokenizer.backend_tokenizer.to_str().encode()
        self.tokenizer_hash = hashlib.sha256(self.tokenizer_json).hexdigest()
        self.chat_template: str = self._tokenizer.chat_template or ""
        self.vocab_size = len(self._tokenizer)
        pieces = self._tokenizer.convert_ids_to_tokens(range(self.vocab_size))
        self.fingerprint = fingerprint(piece or "" for piece in pieces)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, as the tokenizer frames it by default (a BOS where the family wants one)."""
        return tuple(self._tokenizer.encode(_valid(text), verbose=False))

    def render(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Token ids of a chat up to the start of the assistant's next turn."""
        if not self.chat_template:
            raise Unsupported("this target has no chat template; send text (--raw) or token ids", "messages")
        turns = [{"role": turn.role, "content": _valid(turn.content)} for turn in messages]
        try:
            text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates raise whatever their author chose
            raise InvalidRequest(f"the chat template refuses these messages: {error}", "messages") from error
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _valid(text: str) -> str:
    """Lone surrogates have no UTF-8 and would crash the tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("the prompt is not valid Unicode text (a lone surrogate)", "prompt") from error
    return text
