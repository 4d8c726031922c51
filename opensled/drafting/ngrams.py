"""Prompt lookup: when the last few tokens of a text occurred in it before, what followed them then may follow now.

It needs no model and no memory but the text itself. It is strong where answers quote their prompt (code edits,
summaries, JSON). Method: "Prompt Lookup Decoding", A. Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

LONGEST = 4  # tokens of the longest n-gram that is looked up
SHORTEST = 2  # one token predicts too little
# A copy that has been right for r tokens so far is wrong with its next one in MISSES / r of all cases: measured on 24
# answers of SmolLM2-135M, 0.60 for r = 2, 0.38 for 3 and 4, 0.26 for 5 and 6, 0.16 for 7 and 8, 0.02 from 12 on.
MISSES, PRIOR = 1.2, 4.0  # and for how many of those cases with r = 1 that counts beside the present answer
FARTHEST = 64  # tokens that a copy is followed back


class NgramIndex:
    """The n-grams of one text, which grows: the longest one that ends the text and occurred before is copied on.

    The confidence of a copy grows with the length of what has been copied rightly, and falls with each wrong token.
    """

    def __init__(self, text: Sequence[int]) -> None:
        self.text: list[int] = []
        # Of each size: n-gram -> position of what followed it last, the end of the text left out
        self._after: dict[int, dict[tuple[int, ...], int]] = {
            size: {} for size in range(LONGEST, SHORTEST - 1, -1)
        }
        self._wrong, self._expected = MISSES * PRIOR, PRIOR  # in this answer: misses, and sum of 1 / r
        for token in text:
            self._append(token)
        self._source = self._look_up()  # position in the text that is copied next

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by `tokens`, whatever was proposed."""
        for token in tokens:
            if self._source is not None:
                self._expected += 1 / self._match_length(self._source)
                self._wrong += self.text[self._source] != token
            self._append(token)
            self._source = self._look_up()

    def propose(self) -> Iterator[tuple[int, float]]:
        """What may follow the text: ids with their confidence."""
        if self._source is None:
            return
        misses, length = self._wrong / self._expected, self._match_length(self._source)
        copied = self.text[self._source :]
        for token in copied:
            yield token, max(0.0, 1 - misses / length)
            copied.append(token)  # a copy that reaches its own end goes on with itself: a repeated pattern
            length += 1

    def _append(self, token: int) -> None:
        """The text grows; what it ended with until now is known to be followed by `token`."""
        for size, after in self._after.items():
            if len(self.text) >= size:
                after[tuple(self.text[-size:])] = len(self.text)
        self.text.append(token)

    def _look_up(self) -> int | None:
        places = (after.get(tuple(self.text[-size:])) for size, after in self._after.items())
        return next((place for place in places if place is not None), None)

    def _match_length(self, source: int) -> int:
        """How many tokens before `source` are also the last ones of the text, at least SHORTEST."""
        pairs = zip(reversed(self.text[max(0, source - FARTHEST) : source]), reversed(self.text))
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
