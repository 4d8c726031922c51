"""Log-probabilities of the tokens of a prompt, chunk by chunk: the rows of a chunk are read right after the forward
pass that computes it, so that nothing as wide as the vocabulary outlives a step.

Each position is told once to the reader of a session, whatever is computed again after a preemption. A reader that
comes back before the answer has begun gets a session of its own, and hears them from the first one on.
"""

from __future__ import annotations

from collections.abc import Sequence

from opensled.messages import Prefill, PromptToken
from verify_server.engine.base import Scores

# Logits of one chunk at most: 128 MiB in float32. A step never has more rows than --max-step-tokens.
CHUNK_LOGITS = 1 << 25
# Logits that are turned into log-probabilities at once, in float64: 8 MiB, and a few times that on the way. Chosen.
PART_LOGITS = 1 << 20


class PromptScores:
    """Which rows of a prompt are still wanted, and what the latest ones say."""

    def __init__(self, prompt_ids: Sequence[int], count: int, vocab_size: int) -> None:
        """`count`: how many of the likeliest ids to tell at each position; `vocab_size`: of the logits."""
        self._ids, self._count = tuple(prompt_ids), count
        self.most_rows = max(1, CHUNK_LOGITS // vocab_size)  # of a chunk
        self._part = max(1, PART_LOGITS // vocab_size)
        self._told = 0  # tokens of the prompt that the reader has heard of
        self._news: tuple[PromptToken, ...] = ()

    @property
    def first(self) -> int:
        """The first position whose row is wanted; it scores the token behind it, and the last one of a prompt none."""
        return max(0, self._told - 1)

    @property
    def has_news(self) -> bool:
        """Whether anything was read and not told yet."""
        return bool(self._news)

    def rows(self, start: int, stop: int) -> int:
        """How many of the positions [start, stop), the last ones, are computed with their rows."""
        first = max(start, self.first)
        return stop - first if first < min(stop, len(self._ids) - 1) else 0

    def read(self, scores: Scores, row: int, start: int, stop: int) -> None:
        """In the engine's thread: positions [start, stop) are computed; `row`: of the first wanted one.

        Raises NonFiniteLogits.
        """
        first = max(start, self.first)
        ids = self._ids[first + 1 : stop + 1]
        news = [] if self._told else [PromptToken(0, ((self._ids[0], 0.0),))]
        for part in range(0, len(ids), self._part):
            some = ids[part : part + self._part]
            rows = range(row + part, row + part + len(some))
            each = zip(scores.ranks(rows, some), scores.logprobs(rows, some, self._count))
            news += [PromptToken(*one) for one in each]
        self._news = tuple(news)

    def add_to(self, prefill: Prefill) -> Prefill:
        """`prefill` with what was read and not told yet."""
        first, news = self._told, self._news
        self._told, self._news = first + len(news), ()
        return prefill._replace(first=first, tokens=news) if news else prefill
