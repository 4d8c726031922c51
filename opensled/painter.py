"""The text of a growing answer in pieces, each with the origin of its token: what a terminal or a page colours."""

from __future__ import annotations

from collections.abc import Sequence

from opensled.answer import Origin
from opensled.answer_text import TextStream
from opensled.tokenizer import TargetTokenizer


class Painter:
    """Splits the text of one answer into pieces, each with the origin of its token."""

    def __init__(self, tokenizer: TargetTokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, TextStream(tokenizer)
        self._waiting: list[Origin] = []  # of the tokens whose text is not complete yet

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
