"""Prompt lookup decoding: when the last few tokens occurred before, propose what followed them then.

It needs no model and no memory but the sequence itself. It is strong where answers quote their prompt (code edits,
summaries, JSON). Method: "Prompt Lookup Decoding", A. Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from edge_client.drafters.base import Drafter, DrafterFactory
from opensled.messages import DraftToken
from opensled.sampling import Sampler

LONGEST = 4  # tokens of the longest n-gram that is looked up
SHORTEST = 2  # one token predicts too little
# A copy that has been right for r tokens so far is wrong with its next one in MISSES / r of all cases: measured on 24
# answers of SmolLM2-135M, 0.60 for r = 2, 0.38 for 3 and 4, 0.26 for 5 and 6, 0.16 for 7 and 8, 0.02 from 12 on.
MISSES, PRIOR = 1.2, 4.0  # and for how many of those cases with r = 1 that counts beside the present answer
FARTHEST = 64  # tokens that a copy is followed back


class LookupFactory(DrafterFactory):
    """`--drafter lookup`. Needs no model; proposes only ids that the server has committed."""

    name = "lookup"

    def create(self) -> LookupDrafter:
        return LookupDrafter()


class LookupDrafter(Drafter):
    """Copies what followed the latest earlier occurrence of the last n-gram; the longest n-gram that has one wins.

    Its confidence grows with the length of what has been copied rightly, and falls with each wrong token.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.truth: list[int] = []
        # Of each size: n-gram -> position of what followed it last, the end of the truth left out
        self._after: dict[int, dict[tuple[int, ...], int]] = {
            size: {} for size in range(LONGEST, SHORTEST - 1, -1)
        }
        self._source: int | None = None  # position in the truth that is copied next
        self._wrong, self._expected = MISSES * PRIOR, PRIOR  # in this answer: misses, and sum of 1 / r

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._start()
        self.sampler = sampler
        for token in prompt:
            self._append(token)
        self._source = self._look_up()

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._source is not None:
                self._expected += 1 / self._copied(self._source)
                self._wrong += self.truth[self._source] != token
            self._append(token)
            self._source = self._look_up()

    def _append(self, token: int) -> None:
        """The truth grows; what it ended with until now is known to be followed by `token`."""
        for size, after in self._after.items():
            if len(self.truth) >= size:
                after[tuple(self.truth[-size:])] = len(self.truth)
        self.truth.append(token)

    def _look_up(self) -> int | None:
        places = (after.get(tuple(self.truth[-size:])) for size, after in self._after.items())
        return next((place for place in places if place is not None), None)

    def _copied(self, source: int) -> int:
        """How many tokens before `source` are also the last ones of the truth, at least SHORTEST."""
        pairs = zip(reversed(self.truth[max(0, source - FARTHEST) : source]), reversed(self.truth))
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def propose(self) -> Iterator[DraftToken]:
        if self._source is None:
            return
        misses, length = self._wrong / self._expected, self._copied(self._source)
        copied = self.truth[self._source :]
        for token in copied:
            yield self.sampler.certain(token, max(0.0, 1 - misses / length))
            copied.append(token)  # a copy that reaches its own end goes on with itself: a repeated pattern
            length += 1

    def close(self) -> None:
        self._start()
