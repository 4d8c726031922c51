"""Tokens of a text that follow another one: they begin where that one ends, whatever the tokenizer does at the seam."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple, Protocol

ANCHOR = 48  # bytes of the text before a seam that are encoded again; its words come out as they are (chosen)
LONGEST_RUN = 16  # bytes at the end of a text that may still become another token (chosen)


class Tokenizer(Protocol):
    """What a seam needs of a tokenizer."""

    def encode_rendered(self, text: str) -> Sequence[int]:
        """Token ids of a text, without what a model puts in front of every text."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id."""

    def token_of(self, data: bytes) -> int | None:
        """The id that spells just these bytes; None if there is none."""


class Spelled(NamedTuple):
    """A token, and how many bytes it spells."""

    id: int
    size: int


class Seam:
    """The end of one text, where another one begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # SentencePiece puts a space in front of every text
        self._adds_space = self._spell(tokenizer.encode_rendered("a")).startswith(b" ")

    def begin(self, text: bytes) -> bytes:
        """A whole text without the space that the tokenizer itself put in front."""
        return text[1:] if self._adds_space and text.startswith(b" ") else text

    def encode(self, before: bytes, after: bytes) -> list[Spelled]:
        """The tokens of `after` where it follows `before`: as many as spell just its first bytes.

        They end before bytes that are no text (the first bytes of a character among them), and where the tokenizer
        writes another text than it was given (Unicode normalization, unknown characters).
        """
        if not after:
            return []
        anchor, text = _as_text(_last_words(before), after)
        tokens = self._cut(anchor, text, is_whole=not before)
        if tokens is None and anchor:
            tokens = self._cut(*_as_text(b"", after))
        return tokens or []

    def _cut(self, anchor: int, text: bytes, is_whole: bool = False) -> list[Spelled] | None:
        """The tokens of `text` behind its first `anchor` bytes. None: the tokenizer does not keep those bytes.

        `is_whole`: no other text comes before, so a space that the tokenizer puts in front stays.
        """
        ids = self._tokenizer.encode_rendered(text.decode())
        spelled = [self._tokenizer.token_bytes(id) for id in ids]
        place, found = -1 if self._has_added(b"".join(spelled), text) else 0, list[Spelled]()
        for id, piece in zip(ids, spelled):
            end = place + len(piece)
            if text[max(0, place) : end] != piece[max(0, -place) :]:
                return found if place >= anchor or is_whole else None
            if place >= anchor or is_whole:
                found.append(Spelled(id, end - max(0, place)))
            elif end > anchor:
                rest = self._spell_anew(piece[anchor - place :])
                if rest is None:
                    return found
                found += rest
            place = end
        return found

    def encode_loosely(self, text: bytes) -> list[int]:
        """Tokens of a text that the tokenizer writes otherwise, without a space that it puts in front."""
        ids = list(self._tokenizer.encode_rendered(text.decode("utf-8", "replace")))
        first = self._spell(ids[:1])
        rest = self._spell_anew(first[1:]) if self._has_added(first, text) else None
        return ids if rest is None else [*(token.id for token in rest), *ids[1:]]

    def _has_added(self, spelled: bytes, text: bytes) -> bool:
        """Whether `spelled`, the tokens of `text`, has one more space in front."""
        return self._adds_space and _spaces(spelled) > _spaces(text)

    def _spell_anew(self, rest: bytes) -> list[Spelled] | None:
        """What a token has beyond the seam, by the longest tokens that there are; None: there are none."""
        found = list[Spelled]()
        while rest:
            token = self._longest(rest)
            if token is None:
                return None
            found.append(token)
            rest = rest[token.size :]
        return found

    def _longest(self, text: bytes) -> Spelled | None:
        for size in range(len(text), 0, -1):
            id = self._tokenizer.token_of(text[:size])
            if id is not None:
                return Spelled(id, size)
        return None

    def _spell(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self._tokenizer.token_bytes(token) for token in tokens])


def _spaces(text: bytes) -> int:
    """In front of a text."""
    return len(text) - len(text.lstrip(b" "))


def settled(tokens: Sequence[Spelled], text: bytes) -> list[Spelled]:
    """Those of `tokens` that stay as they are whatever follows `text`, which they spell: the last one may grow, and so
    may all tokens of a word, of spaces or of signs that `text` ends in."""
    fixed, place, found = len(text) - _open_run(text), 0, list[Spelled]()
    for token in tokens[:-1]:
        place += token.size
        if place > fixed:
            break
        found.append(token)
    return found


def _open_run(text: bytes) -> int:
    """Bytes of the letters of one kind that `text` ends in, with a space before; 0 above LONGEST_RUN."""
    end = text[-LONGEST_RUN:].decode("utf-8", "ignore")
    kind = _kind(end[-1:])
    size = next(
        (size for size, letter in enumerate(reversed(end)) if not kind or _kind(letter) != kind), len(end)
    )
    if size == len(end) and len(text) > LONGEST_RUN:
        return 0
    run = end[len(end) - size :]
    return len(run.encode()) + end.removesuffix(run).endswith(" ")


def _kind(letter: str) -> str:
    """What tokenizers tell apart; "" for letters of scripts without spaces, where each counts for itself."""
    if not letter or letter.isspace():
        return "space"
    category = unicodedata.category(letter)
    is_wide = category == "Lo" and unicodedata.east_asian_width(letter) == "W"
    if is_wide and not "가" <= letter <= "힣":  # Korean has spaces
        return ""
    return "word" if letter.isalnum() or category.startswith("M") else "sign"


def _last_words(text: bytes) -> bytes:
    """The last ANCHOR bytes, or fewer: from a space on if one is among the first of them."""
    if len(text) < ANCHOR:
        return text
    text = text[-ANCHOR:]
    return text[max(0, text.find(b" ", 0, ANCHOR // 2)) :]


def _as_text(before: bytes, after: bytes) -> tuple[int, bytes]:
    """Both, as far as they are UTF-8 text together, and how many bytes of it come before the seam."""
    while True:
        try:
            (before + after).decode()
            return len(before), before + after
        except UnicodeDecodeError as error:
            if error.start >= len(before):
                return len(before), (before + after)[: error.start]
            before = before[error.end :]
