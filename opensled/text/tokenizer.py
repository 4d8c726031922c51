"""The target's tokenizer, as its tokenizer.json has it; and the bytes of each token, for every kind of tokenizer."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from opensled.core.bounds import require_unicode
from opensled.core.errors import ProtocolError, first_line

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # one raw byte, as SentencePiece vocabularies spell it
SPACE = "▁"  # a space in them

MARK = "\uffff"  # stands before the spelling of a special token; no character, so no text holds it


class TokenBytes:
    """Bytes of token ids: a token may hold a part of a character, which has no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {id: added.content for id, added in tokenizer.get_added_tokens_decoder().items()}
        kinds = _kinds(json.loads(tokenizer.decoder.__getstate__())) if tokenizer.decoder else set()
        self._is_byte_level = "ByteLevel" in kinds
        # Others (WordPiece, word suffixes) join tokens by rules; alone each decodes to its text without the join.
        self._is_plain = bool(kinds & {"Metaspace", "ByteFallback", "Fuse"})

    def of(self, token: int) -> bytes:
        """The bytes of one id; none for an id without a piece."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.id_to_token(token) or ""
        if self._is_byte_level:
            return b"".join(_byte_letters().get(letter) or letter.encode() for letter in piece)
        if raw := BYTE_PIECE.fullmatch(piece):
            return bytes([int(raw[1], 16)])
        if self._is_plain:
            return piece.replace(SPACE, " ").encode()
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text.encode()

    def token_of(self, data: bytes) -> int | None:
        """The id that spells just these bytes; None if there is none. No special token does."""
        found = self._tokenizer.token_to_id(self._piece_of(data))
        if found is None and len(data) == 1:
            found = self._tokenizer.token_to_id(f"<0x{data[0]:02X}>")
        return None if found is None or found in self._added or self.of(found) != data else found

    def _piece_of(self, data: bytes) -> str:
        if self._is_byte_level:
            return "".join([_letters_of_bytes()[byte] for byte in data])
        return data.decode("utf-8", "replace").replace(" ", SPACE)


def _kinds(decoder: Any) -> set[str]:
    """The names of a decoder and of its parts."""
    return {decoder.get("type", "")}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


@cache
def _byte_letters() -> dict[str, bytes]:
    """How byte-level BPE spells bytes (GPT-2's table): a byte that prints as itself, others as letters from U+0100."""
    printing = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printing]
    letters = {chr(byte): bytes([byte]) for byte in printing}
    return letters | {chr(256 + index): bytes([byte]) for index, byte in enumerate(others)}


@cache
def _letters_of_bytes() -> dict[int, str]:
    return {spelled[0]: letter for letter, spelled in _byte_letters().items()}


@contextmanager
def panics_told() -> Iterator[None]:
    """Raises a panic of Rust, which is no Exception, as ProtocolError: as it comes it would pass every handler, and the
    wait for it would not end. tokenizers panics at a pattern that backtracks without end."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise ProtocolError(f"this model's tokenizer breaks down at this text: {first_line(error)}") from None


@panics_told()
def tokenizer_of(content: bytes) -> Tokenizer:
    """The tokenizer of a tokenizer.json, which encodes whole texts; raises what `tokenizers` does, bare Exception."""
    return whole(Tokenizer.from_buffer(content))


def whole(tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer` without what a training run left in its file: it cuts, fills and varies no text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """The spelling of ids 0, 1, 2, ...; "" for an id without one."""
    return [tokenizer.id_to_token(token) or "" for token in range(tokenizer.get_vocab_size())]


class TargetTokenizer:
    """Encodes prompts and decodes answers exactly as the server does."""

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._tokenizer = tokenizer_of(tokenizer_json)
        except Exception as error:  # tokenizers raises bare Exception
            raise ProtocolError(f"the server's tokenizer.json cannot be read: {error}") from error
        self._bytes = TokenBytes(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.special_pieces = frozenset(added[id].content for id in self.special_ids)
        self.added_pieces = frozenset(token.content for token in added.values())

    @property
    def pieces(self) -> list[str]:
        return pieces_of(self._tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, with the special tokens (such as BOS) that the model adds."""
        return self._ids(text, special=True)

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that already has its special tokens, as chat templates write it."""
        return self._ids(text, special=False)

    @panics_told()
    def _ids(self, text: str, special: bool) -> tuple[int, ...]:
        text = require_unicode(text, "the prompt", "prompt")
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)
        except Exception as error:  # tokenizers raises bare Exception
            raise ProtocolError(f"the server's tokenizer.json cannot encode a text: {error}") from error

    @property
    def raw(self) -> Tokenizer:
        """The library's own object."""
        return self._tokenizer

    def piece(self, token: int) -> str:
        """The spelling of one id; "" for an id without one."""
        return self._tokenizer.id_to_token(token) or ""

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of a whole sequence; special tokens are left out unless `special`."""
        try:  # for each token of an answer: the manager, and its cost, come in where it fails
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=not special)
        except BaseException:
            with panics_told():
                raise
        return text

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id; of a special token the bytes of its name."""
        return self._bytes.of(token)

    def token_of(self, data: bytes) -> int | None:
        """The id that spells just these bytes; None if there is none."""
        return self._bytes.token_of(data)

    def is_raw_byte(self, token: int) -> bool:
        return BYTE_PIECE.fullmatch(self.piece(token)) is not None
