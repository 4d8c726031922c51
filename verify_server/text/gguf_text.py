"""Tokenizer and chat template of a GGUF target, without torch or transformers.

A tokenizer.json beside the file is preferred, with the chat template beside it; otherwise both come from the file's
metadata. In both cases llama.cpp must tokenize a few texts to the same ids, or the target is refused. So must it with a
chat, unless a tokenizer.json says otherwise: the model was trained by that one.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from opensled.core.errors import RequestError, UnsupportedModel, VocabularyMismatch
from opensled.core.messages import ChatMessage, Tool
from opensled.core.vocabulary import fingerprint
from opensled.models.gguf_file import read_metadata
from opensled.models.model_kind import why_not_here
from opensled.process.logs import announce
from opensled.text.control_tokens import ControlTokens
from opensled.text.tokenizer import panics_told, tokenizer_of
from verify_server.text import gguf_ends, gguf_tokenizer, template_files
from verify_server.text.chat_template import Chats, valid_text
from verify_server.text.template_files import Templates

# Name of a special token in templates -> GGUF's key of its id.
SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
ADDED = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")  # what files state of tokens
# Texts in which tokenizers differ: contractions, cases, digits, runs of blanks, marks, scripts, emoji, code.
PROBES = (
    "Hello, world! It's 2,048 o'clock; WE'LL see.",
    "  two blanks\n\n\tand a tab   \r\nend ",
    "def area(width_px: int) -> float:\n    return width_px**2 / 1234567890\n",
    "Über façade naïve ŁÓDŹ HTTPServer camelCase",
    "नमस्ते दुनिया, привет мир, 你好世界, こんにちは, 안녕하세요, سلام",
    "5 😀👍🏽 €3.50 — “quoted” … ½ x² #1 @you",
)
PROBE_CHAT = (
    ChatMessage("system", " Be brief.\n"),
    ChatMessage("user", "\n  Hello,  world! \n\n"),
    ChatMessage("assistant", " Yes.\n"),
    ChatMessage("user", "def f(x):\n    return x\n"),
)


class GgufText:
    """See `verify_server.round.loaded_model.TextCodec`."""

    def __init__(self, path: Path) -> None:
        """Raises NotFound and UnsupportedModel."""
        metadata = read_metadata(path)
        self._path, files = path, _TokenizerFolder(path.parent)
        self._is_beside = files.present
        self._tokenizer = files.tokenizer() or gguf_tokenizer.build(metadata)
        self._pieces = [
            self._tokenizer.id_to_token(id) or "" for id in range(self._tokenizer.get_vocab_size())
        ]
        self.tokenizer_json = self._tokenizer.to_str().encode()
        self.tokenizer_hash = hashlib.sha256(self.tokenizer_json).hexdigest()
        beside = files.templates()
        templates = beside if any(beside) else template_files.in_metadata(metadata, self._begin(metadata))
        self.chat_template, self.tool_template = templates
        self.special_tokens = files.special() or _special(metadata)  # by the names in SPECIAL
        self._chats = Chats(templates, self.special_tokens, path, undefined=templates is not beside)
        self.template_variables, self.calls = self._chats.variables, self._chats.calls
        self._control = ControlTokens(self._tokenizer, templates)
        self.vocab_size = len(self._pieces)
        stated = (*gguf_ends.eos_ids(metadata), *files.ends(self._tokenizer))
        self.eos_ids = tuple(dict.fromkeys((*stated, *gguf_ends.special_ends(self._tokenizer))))
        self.fingerprint = fingerprint(self._pieces)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, as the tokenizer frames it by default (a BOS where the family wants one)."""
        return self._ids(valid_text(text), framed=True)

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a chat up to the start of the assistant's next turn, in which it may call `tools`."""
        encode = partial(self._ids, framed=False)
        return self._control.encode(messages, tools, self._chats.render, encode, variables)

    @panics_told()
    def _ids(self, text: str, framed: bool) -> tuple[int, ...]:
        """By `encode_batch`: `encode` holds the interpreter's lock, seconds for a long text, and stalls all streams."""
        return tuple(self._tokenizer.encode_batch([text], add_special_tokens=framed)[0].ids)

    def require_same(
        self, pieces: Sequence[str], tokenize: Callable[[str], list[int]], bos: Sequence[int]
    ) -> None:
        """Refuse a tokenizer that differs from the model's `pieces` (by id) or `tokenize` (without its `bos`).

        llama.cpp itself only warns of a pre-tokenizer that it does not know.
        """
        self.require_pieces(pieces)
        for text in PROBES:
            self._require_ids(text, tokenize(text))
        is_same = self.encode(PROBES[0]) == (*bos, *tokenize(PROBES[0]))
        for text in self._chats_to_probe():
            if not self._is_beside:
                self._require_ids(text, tokenize(text))
            is_same = is_same and self._ids(text, framed=False) == tuple(tokenize(text))
        if self._is_beside and not is_same:
            announce(
                f"llama.cpp begins texts of {self._path.name}, or reads its control tokens or blanks around them, "
                "otherwise than the tokenizer.json beside it, which is taken; if answers are odd, move that file away"
            )

    def _require_ids(self, text: str, ids: list[int]) -> None:
        if self._ids(text, framed=False) != tuple(ids):
            raise VocabularyMismatch(
                f"llama.cpp and this tokenizer cut {text!r} into different tokens; {gguf_tokenizer.NEXT_STEP}, "
                "or convert the model again with a current llama.cpp"
            )

    def _chats_to_probe(self) -> Iterator[str]:
        """A chat, and the control tokens of chats with blanks around them."""
        templates = self.chat_template + self.tool_template
        names = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        for name in [name for name in names if name in templates][:64]:
            yield f" {name} \n\n Word  {name}\n{name}\tword\n"
        with suppress(RequestError):  # this template wants another chat
            yield self._chats.render(PROBE_CHAT, ())

    def _begin(self, metadata: Mapping[str, Any]) -> str:
        """The token with which every text begins, "" = none."""
        first = self._ids("", framed=True)[:1]
        return self._pieces[first[0]] if first == (metadata.get(SPECIAL["bos_token"]),) else ""

    def require_pieces(self, pieces: Sequence[str]) -> None:
        """Refuse a tokenizer that spells ids otherwise than the model, whose `pieces` are by id."""
        if len(pieces) < self.vocab_size or list(pieces[: self.vocab_size]) != self._pieces:
            raise VocabularyMismatch(
                f"the tokenizer of this GGUF file ({self.vocab_size} ids) spells its ids otherwise than the model "
                f"({len(pieces)}); {gguf_tokenizer.NEXT_STEP}, or keep others' away from it"
            )


class _TokenizerFolder:
    """Tokenizer and chat template beside a GGUF file, if it is in a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.present = (folder / "tokenizer.json").is_file()

    def tokenizer(self) -> Tokenizer | None:
        path = self._folder / "tokenizer.json"
        if not self.present:
            return None
        try:
            return self._with_added(tokenizer_of(path.read_bytes()))
        except Exception as error:  # tokenizers raises bare Exception
            damaged = f"{path} cannot be read: {error}; download it again"
            raise UnsupportedModel(why_not_here(path) or damaged) from error

    def _with_added(self, tokenizer: Tokenizer) -> Tokenizer:
        """With tokens that tokenizer_config.json alone states, as transformers adds them."""
        stated = (
            template_files.read_object(self._folder / template_files.CONFIG).get("added_tokens_decoder") or {}
        )
        for id, token in sorted((int(id), token) for id, token in stated.items()):
            if tokenizer.id_to_token(id) is None:
                tokenizer.add_tokens([AddedToken(**{name: token[name] for name in ADDED if name in token})])
        return tokenizer

    def templates(self) -> Templates:
        return template_files.in_folder(self._folder) if self.present else Templates()

    def special(self) -> dict[str, str]:
        """The special tokens by the names in `SPECIAL`."""
        if not self.present:
            return {}
        config = template_files.read_object(self._folder / template_files.CONFIG)
        found = {name: template_files.token_text(config.get(name)) for name in SPECIAL}
        return {name: text for name, text in found.items() if text}

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        return template_files.ends_in(self._folder, tokenizer.token_to_id) if self.present else ()


def _special(metadata: dict[str, Any]) -> dict[str, str]:
    """The special tokens of the file's metadata, by the names in `SPECIAL`."""
    pieces = gguf_tokenizer.pieces_of(metadata)
    ids = {name: metadata.get(key) for name, key in SPECIAL.items()}
    return {name: pieces[id] for name, id in ids.items() if id is not None and id < len(pieces)}
