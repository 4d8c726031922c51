"""A draft model of another vocabulary as a source of text: its own context is kept in step with the target's text."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from edge_client.drafters.base import ModelDrafter
from edge_client.drafters.by_text import Piece, TextSource
from edge_client.drafters.retokenize import ANCHOR, LONGEST_RUN, Seam, Tokenizer
from opensled.core.messages import SamplingParams
from opensled.core.sampling import Sampler

# Tokens from which on a text counts as new: the drafter's window chooses what of it is read (chosen)
LONG_NEWS = 64
# Letters that a tokenizer writes otherwise, after which the rest of a text is encoded at once (chosen)
MAX_ODD_LETTERS = 8


class DraftTokenizer(Tokenizer, Protocol):
    """The tokenizer of a draft model."""

    @property
    def size(self) -> int:
        """The number of its ids; the model's logits may be padded beyond."""

    @property
    def frame(self) -> tuple[int, ...]:
        """What the model wants in front of every text."""

    @property
    def ends(self) -> frozenset[int]:
        """The ids that end an answer."""


class ModelText(TextSource):
    """Greedy text of one draft model.

    `_ids` spell the first bytes of `_text`, up to each of `_ends`; the drafter was told of them. The rest of `_text`,
    if any, is the beginning of what the drafter drafted.
    """

    def __init__(self, drafter: ModelDrafter, tokenizer: DraftTokenizer) -> None:
        self._drafter, self._tokenizer, self._seam = drafter, tokenizer, Seam(tokenizer)
        self._sampler = Sampler(SamplingParams(temperature=0.0), b"", vocab_size=tokenizer.size)
        self._text, self._ids, self._ends = b"", list[int](), list[int]()

    @property
    def _covered(self) -> int:
        return self._ends[-1] if self._ends else 0

    def follow(self, text: bytes) -> None:
        drafted = self._drafted()
        known = self._text[: self._covered] + b"".join([piece for _, piece in drafted])
        agreed = _common(known, text)
        self._confirm(drafted, agreed)
        if agreed < max(len(text), self._covered):
            self._revise(text, agreed)
        self._text = text

    def _drafted(self) -> list[tuple[int, bytes]]:
        """What the drafter has drafted, up to the end of its answer."""
        found = list[tuple[int, bytes]]()
        for token in self._drafter.drafted:
            if token.id in self._tokenizer.ends:
                break
            found.append((token.id, self._tokenizer.token_bytes(token.id)))
        return found

    def _confirm(self, drafted: Sequence[tuple[int, bytes]], agreed: int) -> None:
        """Of `drafted`, what ends before the first `agreed` bytes do is the truth."""
        before = len(self._ids)
        for id, piece in drafted:
            if self._covered + len(piece) > agreed:
                break
            self._ends.append(self._covered + len(piece))
            self._ids.append(id)
        if len(self._ids) > before:
            self._drafter.commit(self._ids[before:])

    def _revise(self, text: bytes, agreed: int) -> None:
        """Encode what is new of `text`, from the beginning of the word on that the news may change."""
        first = max(text.rfind(b" ", 0, agreed), text.rfind(b"\n", 0, agreed), agreed - LONGEST_RUN, 0)
        keep = bisect_right(self._ends, first)
        if keep and not self._ends[keep - 1]:
            keep = 0  # nothing but a space that the tokenizer put in front
        dropped = len(self._ids) - keep
        del self._ids[keep:], self._ends[keep:]
        self._encode(text)
        news = self._ids[keep:]
        if keep and max(dropped, len(news)) < LONG_NEWS:
            self._drafter.revise(dropped, news)
        else:
            self._drafter.begin([*self._tokenizer.frame, *self._ids], self._sampler)

    def _encode(self, text: bytes) -> None:
        """Extend `_ids` and `_ends` up to the end of `text`, or to the first bytes of a character there.

        A letter that the tokenizer does not keep as it is (Unicode normalization, unknown characters, bytes that are no
        text) is encoded for itself, as it comes.
        """
        for _ in range(MAX_ODD_LETTERS):
            start = self._covered
            for token in self._seam.encode(text[max(0, start - ANCHOR) : start], text[start:]):
                self._ids.append(token.id)
                self._ends.append(self._covered + token.size)
            if _is_cut(text[self._covered :]):
                return
            self._encode_loosely(text, _letter_end(text, self._covered))
        cut = next((size for size in (1, 2, 3) if _is_cut(text[-size:])), 0)
        self._encode_loosely(text, len(text) - cut)

    def _encode_loosely(self, text: bytes, stop: int) -> None:
        # A normalizer may leave nothing, of invisible letters for example; something has to stand for them
        ids = self._seam.encode_loosely(text[self._covered : stop]) or self._seam.encode_loosely(b" ")
        self._ids += ids
        self._ends += [stop] * len(ids)

    def pieces(self) -> Iterator[Piece]:
        owed = self._text[self._covered :]
        for token in self._drafter.propose():
            if token.id in self._tokenizer.ends:
                yield Piece(b"", token.confidence, is_end=True)
                return
            piece = self._tokenizer.token_bytes(token.id)
            if _common(piece, owed) < min(len(piece), len(owed)):
                return  # another character than the one that has begun
            news, owed = piece[len(owed) :], owed[len(piece) :]
            if news:
                yield Piece(news, token.confidence)

    @property
    def behind(self) -> bool:
        return self._drafter.behind

    def read(self, most: int) -> bool:
        return self._drafter.read(most)

    def close(self) -> None:
        self._drafter.close()
        self._text, self._ids, self._ends = b"", [], []


def _common(left: bytes, right: bytes) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_cut(rest: bytes) -> bool:
    """Whether `rest` is nothing, or the first bytes of one character."""
    try:
        return not rest.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.end == len(rest) and error.reason == "unexpected end of data"


def _letter_end(text: bytes, start: int) -> int:
    """The end of the letter at `start`, with its marks."""
    letters = text[start : start + LONGEST_RUN].decode("utf-8", "surrogateescape")
    size = next(
        (size for size in range(1, len(letters)) if not unicodedata.combining(letters[size])), len(letters)
    )
    return start + len(letters[:size].encode("utf-8", "surrogateescape"))
