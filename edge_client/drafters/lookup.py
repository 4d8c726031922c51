"""Prompt lookup decoding: when the last few tokens occurred before, propose what followed them then.

It needs no model and no memory but the sequence itself. It is strong where answers quote their prompt (code edits,
summaries, JSON). Method: "Prompt Lookup Decoding", A. Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edge_client.drafters.base import Drafter, DrafterFactory
from opensled.messages import DraftToken
from opensled.sampling import Sampler

LONGEST = 4  # tokens of the longest n-gram that is looked up
SHORTEST = 2  # one token predicts too little


class LookupFactory(DrafterFactory):
    """`--drafter lookup`. Needs no model; proposes only ids that the server has committed."""

    name = "lookup"

    def create(self) -> LookupDrafter:
        return LookupDrafter()


@dataclass
class NGrams:
    """Where each n-gram of one length was last seen, and how well that predicted the token after it."""

    size: int
    after: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> position of what followed it
    match: int | None = None  # position that followed the latest earlier occurrence of the sequence's suffix
    right: int = 0
    wrong: int = 0

    def append(self, truth: list[int]) -> None:
        """Learn from the newest token of `truth`, in constant time."""
        if self.match is not None:
            hit = truth[self.match] == truth[-1]
            self.right, self.wrong = self.right + hit, self.wrong + (not hit)
        suffix = tuple(truth[-self.size :])
        self.match = self.after.get(suffix)
        if len(suffix) == self.size:
            self.after[suffix] = len(truth)

    @property
    def confidence(self) -> float:
        """The share of right predictions so far in this sequence (Laplace's rule: 1/2 before the first)."""
        return (self.right + 1) / (self.right + self.wrong + 2)


class LookupDrafter(Drafter):
    """The longest n-gram with a match wins; its confidence is how often that length was right so far."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.truth: list[int] = []
        self.tables = [NGrams(size) for size in range(LONGEST, SHORTEST - 1, -1)]

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._start()
        self.sampler = sampler
        self.commit(prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.truth.append(token)
            for table in self.tables:
                table.append(self.truth)

    def propose(self) -> Iterator[DraftToken]:
        table = next((table for table in self.tables if table.match is not None), None)
        if table is None or table.match is None:
            return
        confidence = table.confidence
        copied = self.truth[table.match :]
        for token in copied:
            yield self.sampler.certain(token, confidence)
            copied.append(token)  # a copy that reaches its own end goes on with itself: a repeated pattern

    def close(self) -> None:
        self._start()
