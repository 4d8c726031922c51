"""Drafts of another vocabulary, by text: what a source writes is tokenized again with the target's own tokenizer.

Whatever the source writes, the target decides; a cut at a place where the target does not cut costs drafts only. Three
things decide how many drafts stand:

- The new tokens begin where the truth ends. They are encoded behind the last tokens of the truth, for a tokenizer may
  put a space in front of a text, and may merge over the seam. A token that would reach over the seam is spelled anew.
- A token is drafted when more text can no longer change it: "un" may become "unbelievable".
- The source hears the text of the truth, never ids; it keeps what agrees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from edge_client.drafters.base import Drafter
from edge_client.drafters.retokenize import ANCHOR, LONGEST_RUN, Seam, settled
from opensled.core.messages import DraftToken
from opensled.core.sampling import Sampler
from opensled.text.tokenizer import TargetTokenizer

MAX_PENDING = 2 * LONGEST_RUN  # bytes after which the last token is drafted as it is (chosen)


class Piece(NamedTuple):
    """A part of a continuation."""

    text: bytes  # may end within a character
    confidence: float = 1.0  # probability of this piece, 0 to 1
    is_end: bool = False  # the source would end its answer here; nothing follows


class TextSource(ABC):
    """What continues a text, as text: a draft model of another vocabulary, or a server that speaks text.

    It runs in the drafter's thread.
    """

    @abstractmethod
    def follow(self, text: bytes) -> None:
        """The text is `text` now, without the target's own beginning of a sequence. It may be shorter than before.

        What was produced stays as far as `text` agrees with it. Iterators of `pieces` from before are not used again.
        """

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """What follows, from the first byte after the text; what is there already comes at once.

        An iterator that ended is asked for again later: a source may have more then.
        """

    @property
    def behind(self) -> bool:
        """See `Drafter`."""
        return False

    def read(self, most: int) -> bool:
        """See `Drafter`."""
        return False

    def interrupt(self) -> None:  # noqa: B027
        """See `Drafter`; until the next `follow`."""

    def close(self) -> None:  # noqa: B027
        """Free what the source holds. A second call does nothing."""


class ByTextDrafter(Drafter):
    """Drafts the target's tokens from what a source of text writes; greedy always, at every temperature.

    `_text` is the truth, and `_drafted` follows it; the source has been told the text of both. `_pending` is what the
    source wrote behind them.
    """

    def __init__(self, source: TextSource, tokenizer: TargetTokenizer, ends: Sequence[int] = ()) -> None:
        """`tokenizer`: the target's; `ends`: the ids that end its answers. The end that is drafted is the latest one
        in the prompt, or else the first of them."""
        self._source, self._tokenizer, self._ends = source, tokenizer, tuple(ends)
        self._frame = tokenizer.encode("")  # what the target's own tokenizer puts in front of every text
        self._seam = Seam(tokenizer)
        self._sampler: Sampler | None = None
        self._forget()

    def _forget(self) -> None:
        self._text = bytearray()
        self._drafted: list[DraftToken] = []
        self._end = self._ends[0] if self._ends else None
        self._truths = 0  # counts begins and commits, so that a generator of an older truth ends
        self._listen()

    def _listen(self) -> None:
        """Nothing of the source's text is known."""
        self._pending = bytearray()
        # Of each piece: its first byte in `_pending`, and its confidence
        self._chances = list[tuple[int, float]]()
        self._pieces: Iterator[Piece] | None = None
        self._is_over = False  # the source ended its answer

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        truths = self._truths
        self._forget()
        self._truths = truths + 1
        self._sampler = sampler
        is_framed = tuple(prompt[: len(self._frame)]) == self._frame
        self._text += self._seam.begin(self._spell(prompt[len(self._frame) if is_framed else 0 :]))
        self._end = next((token for token in reversed(prompt) if token in self._ends), self._end)
        self._follow()

    def commit(self, tokens: Sequence[int]) -> None:
        self._truths += 1
        agrees = [token.id for token in self._drafted[: len(tokens)]] == list(tokens)
        self._text += self._spell(tokens)
        if agrees:
            del self._drafted[: len(tokens)]  # the source was told of them already
        else:
            self._drafted.clear()
            self._follow()

    def propose(self) -> Iterator[DraftToken]:
        truths, index = self._truths, 0
        while truths == self._truths and (index < len(self._drafted) or self._draft_more()):
            yield self._drafted[index]
            index += 1

    @property
    def ready(self) -> int:
        return len(self._drafted)

    @property
    def behind(self) -> bool:
        return self._source.behind

    def read(self, most: int) -> bool:
        return self._source.read(most)

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        if [token.id for token in self._drafted[: len(block)]] != [token.id for token in block]:
            self._drafted[:] = block  # of another drafter in the chain
            self._follow()
        truths, end = self._truths, len(block) + 1 + length
        while truths == self._truths and len(self._drafted) < end:
            known = len(self._drafted)
            if not self._draft_more():
                return
            yield from [None] * min(len(self._drafted) - known, end - known)

    def interrupt(self) -> None:
        self._source.interrupt()

    def close(self) -> None:
        self._truths += 1
        self._source.close()

    def _draft_more(self) -> bool:
        """Append one draft token or several; False: the source has nothing more now."""
        known = len(self._drafted)
        while len(self._drafted) == known and not self._is_stuck:
            if self._pieces is None:
                self._pieces = self._source.pieces()
            piece = next(self._pieces, None)
            if piece is None:
                self._take(whole=True)
                self._follow()  # it may have more later
                break
            self._hear(piece)
            self._take(piece.is_end or len(self._pending) > MAX_PENDING)
            if piece.is_end and self._end is not None:
                self._append(self._end, piece.confidence)
        return len(self._drafted) > known

    @property
    def _is_stuck(self) -> bool:
        """Whether no token comes before the truth grows: behind an end, and behind bytes that no token spells."""
        return self._sampler is None or self._is_over or len(self._pending) > MAX_PENDING

    def _hear(self, piece: Piece) -> None:
        self._is_over = piece.is_end
        if piece.text:
            self._chances.append((len(self._pending), piece.confidence))
            self._pending += piece.text

    def _take(self, whole: bool) -> None:
        """Draft the tokens of `_pending` that stay as they are whatever follows; `whole`: nothing follows."""
        tokens = self._seam.encode(self._tail(), bytes(self._pending))
        for id, size in tokens if whole else settled(tokens, bytes(self._pending)):
            self._append(id, self._chance(size))
            del self._pending[:size]

    def _tail(self) -> bytes:
        """The last bytes of the truth and of what is drafted."""
        return bytes(self._text[-ANCHOR:]) + self._spell([token.id for token in self._drafted])

    def _chance(self, size: int) -> float:
        """Of a token that is the first `size` bytes: all pieces that begin in it have to be right."""
        chance = prod([confidence for first, confidence in self._chances if first < size])
        self._chances = [(first - size, confidence) for first, confidence in self._chances if first >= size]
        return chance

    def _append(self, id: int, confidence: float) -> None:
        assert self._sampler is not None
        self._drafted.append(self._sampler.certain(id, confidence))

    def _spell(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self._tokenizer.token_bytes(token) for token in tokens])

    def _follow(self) -> None:
        """Tell the source the text of the truth and of what is drafted."""
        self._listen()
        self._source.follow(bytes(self._text) + self._spell([token.id for token in self._drafted]))
