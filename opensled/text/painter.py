"""The text of a growing answer in pieces, each with the origin of its token: what a terminal or a page colours."""

from __future__ import annotations

from collections.abc import Sequence

from opensled.core.answer import Chunk, Origin
from opensled.text.answer_text import TextStream
from opensled.text.tokenizer import TargetTokenizer

Piece = tuple[str, Origin]


class Painter:
    """Splits the text of one answer into pieces, each with the origin of its token."""

    def __init__(self, tokenizer: TargetTokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, TextStream(tokenizer)
        self._waiting: list[Origin] = []  # of the tokens whose text is not complete yet
        self._ahead: list[Piece] = []  # pieces that no chunk has shown yet

    def paint(self, chunk: Chunk) -> tuple[list[Piece], list[Piece]]:
        """The thoughts and the text of the next chunk.

        The tokens also spell the tags around thoughts, which are not shown. Their letters are passed over; should they
        spell the thought's first ones, these have the colour of the tag.
        """
        self._ahead += self.push(chunk.token_ids, chunk.origins)
        self._ahead += self.flush() if chunk.finish_reason else []
        return self._take(chunk.thoughts), self._take(chunk.text)

    def _take(self, shown: str) -> list[Piece]:
        """The next pieces whose text is `shown`, without those before them."""
        if not shown:
            return []
        spelled = "".join(text for text, _ in self._ahead)
        at = spelled.find(shown)
        if at < 0:  # never of an answer's own tokens
            return [(shown, self._ahead[-1][1] if self._ahead else "server")]
        _, rest = _cut(self._ahead, at)
        taken, self._ahead = _cut(rest, len(shown))
        return taken

    def push(self, ids: Sequence[int], origins: Sequence[Origin]) -> list[tuple[str, Origin]]:
        """The pieces that these tokens complete."""
        pieces: list[tuple[str, Origin]] = []
        for token, origin in zip(ids, origins):
            if token in self._tokenizer.special_ids:
                continue  # it has no text
            self._waiting.append(origin)
            texts = self._stream.push_each(token)
            if texts:
                pieces += zip(texts, self._waiting)
                self._waiting = []
        return pieces

    def flush(self) -> list[tuple[str, Origin]]:
        """The rest at the end of the answer."""
        return [(text, self._waiting[-1])] if (text := self._stream.flush()) else []


def _cut(pieces: Sequence[Piece], length: int) -> tuple[list[Piece], list[Piece]]:
    """The first `length` characters of `pieces`, and the others."""
    first, rest = list[Piece](), list[Piece]()
    for text, origin in pieces:
        if text[:length]:
            first.append((text[:length], origin))
        if text[length:]:
            rest.append((text[length:], origin))
        length = max(0, length - len(text))
    return first, rest
