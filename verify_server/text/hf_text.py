"""Tokenizer and chat template of a Hugging Face target."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opensled.core.errors import UnsupportedModel, first_line
from opensled.core.messages import ChatMessage, Tool
from opensled.core.vocabulary import fingerprint
from opensled.text.control_tokens import ControlTokens
from opensled.text.tokenizer import panics_told, whole
from verify_server.text import template_files
from verify_server.text.chat_template import Chats, valid_text
from verify_server.text.gguf_ends import special_ends


class HFText:
    """See `verify_server.round.loaded_model.TextCodec`; uses the tokenizer in the model's folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UnsupportedModel for a tokenizer that cannot be read, or a chat template that takes too much."""
        self._tokenizer = _tokenizer(folder)
        self.tokenizer_json = self._tokenizer.backend_tokenizer.to_str().encode()
        self.tokenizer_hash = hashlib.sha256(self.tokenizer_json).hexdigest()
        templates = template_files.in_folder(folder)
        self.chat_template, self.tool_template = templates
        placeholder = _placeholder(folder, self._tokenizer)
        self._chats = Chats(templates, self._tokenizer.special_tokens_map, folder, placeholder)
        self.template_variables, self.calls = self._chats.variables, self._chats.calls
        self._control = ControlTokens(self._tokenizer.backend_tokenizer, templates, placeholder)
        self.vocab_size = len(self._tokenizer)
        pieces = self._tokenizer.convert_ids_to_tokens(range(self.vocab_size))
        self.fingerprint = fingerprint(piece or "" for piece in pieces)
        stated = template_files.ends_in(folder, self._tokenizer.get_vocab().get)
        spelled = special_ends(self._tokenizer.backend_tokenizer)
        self.eos_ids = tuple(dict.fromkeys((*stated, *spelled)))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, as the tokenizer frames it by default (a BOS where the family wants one)."""
        with panics_told():
            return tuple(self._tokenizer.encode(valid_text(text), verbose=False))

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a chat up to the start of the assistant's next turn, in which it may call `tools`."""
        return self._control.encode(messages, tools, self._chats.render, self._encode_rendered, variables)

    def _encode_rendered(self, text: str) -> tuple[int, ...]:
        with panics_told():
            return tuple(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _placeholder(folder: Path, tokenizer: Any) -> str:
    """The text of the token that stands for a picture; "" = the model reads text alone."""
    config = template_files.read_object(folder / "config.json")
    token_id = config.get("image_token_index", config.get("image_token_id"))
    return tokenizer.convert_ids_to_tokens(token_id) or "" if isinstance(token_id, int) else ""


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:  # its templates are looked up in verify_server/text/template_files.py
        with panics_told():
            made = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, use_fast=True, chat_template=""
            )
        whole(made.backend_tokenizer)  # fails for one that is Python alone, which devices could not use
        return made
    except Exception as error:  # tokenizers raises bare Exception, transformers many kinds
        cause = first_line(error)
        raise UnsupportedModel(
            f"the tokenizer of {folder} cannot be read: {cause}; download its tokenizer.json and "
            "tokenizer_config.json again"
        ) from error
