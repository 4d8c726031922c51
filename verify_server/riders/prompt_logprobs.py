"""Log-probabilities of the tokens of a prompt, chunk by chunk: the rows of a chunk are read right after the forward
pass that computes it, so that nothing as wide as the vocabulary outlives a step.

Each position is told once to the reader of a session, whatever is computed again after a preemption. A reader that
comes back before the answer has begun gets a session of its own, and hears them from the first one on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opensled.core.messages import Prefill, PromptToken
from scheduler.plan import Slice
from verify_server.engine.base import Segment
from verify_server.riders.opening import Opening
from verify_server.round.rider import Message, Rider
from verify_server.rules.base import Reading, StepRows
from verify_server.rules.decide import StepResult

# Logits of one chunk at most: 128 MiB in float32. A step never has more rows than max-step-tokens.
CHUNK_LOGITS = 1 << 25
# Logits that are turned into log-probabilities at once, in float64: 8 MiB, and a few times that on the way. Chosen.
PART_LOGITS = 1 << 20


@dataclass(frozen=True)
class PromptReading(Reading):
    """Finds what the rows of a prompt's tokens say of those behind them."""

    ids: tuple[int, ...]  # the tokens, each of which is scored by one row
    first: int  # the first of these rows, counted from the newest one: <= 0
    count: int  # how many of the likeliest tokens to tell in each place
    part: int  # rows that are read at once

    def read(self, rows: StepRows) -> list[PromptToken]:
        """See `Scores.ranks` and `Scores.logprobs`."""
        found: list[PromptToken] = []
        for part in range(0, len(self.ids), self.part):
            ids = self.ids[part : part + self.part]
            first = rows.newest + self.first + part
            places = range(first, first + len(ids))
            each = zip(rows.scores.ranks(places, ids), rows.scores.logprobs(places, ids, self.count))
            found += [PromptToken(*one) for one in each]
        return found


class PromptLogprobs(Rider):
    """Which rows of a prompt are still wanted, and what the latest ones say."""

    def __init__(self, prompt_ids: Sequence[int], count: int, vocab_size: int) -> None:
        """`count`: how many of the likeliest ids to tell at each position; `vocab_size`: of the logits."""
        self._ids, self._count = tuple(prompt_ids), count
        self._max_rows = max(1, CHUNK_LOGITS // vocab_size)  # of a chunk
        self._part = max(1, PART_LOGITS // vocab_size)
        self._told = 0  # tokens of the prompt that the reader has heard of
        self._news: tuple[PromptToken, ...] = ()  # what was read and not told yet

    @classmethod
    async def of(cls, opening: Opening) -> PromptLogprobs | None:
        """See `RIDERS`."""
        count = opening.message.prompt_logprobs
        return None if count is None else cls(opening.prompt_ids, count, opening.vocab_size)

    def reusable(self, length: int) -> int:
        """No row of these positions is wanted."""
        return min(length, self._first + 1) if self._count_rows(0, len(self._ids)) else length

    def limit_slice(self, piece: Slice, computed: int) -> Slice:
        """No more rows than a step may hold for one session."""
        if piece.tokens <= self._max_rows or not self._count_rows(computed, computed + piece.tokens):
            return piece
        return replace(piece, tokens=self._max_rows, decide=False)

    def segment(self, segment: Segment, stop: int) -> Segment:
        """With the rows that are wanted, beside those of the decision, whose first one is that of the newest token."""
        wanted = self._count_rows(segment.start, stop)
        return segment._replace(rows=wanted + max(0, segment.rows - 1)) if wanted else segment

    def reads(self, start: int, stop: int, decides: bool) -> tuple[Reading, ...]:
        """The rows that are wanted; the first token of a prompt has none, and is told with the first step."""
        if self._told and not self._count_rows(start, stop):
            return ()
        first = max(start, self._first)
        ids = self._ids[first + 1 : stop + 1]
        return (PromptReading(ids, first - (stop - 1), self._count, self._part),)

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """What was read is told next."""
        found = outcome.read.get(PromptReading)
        if found is not None:
            begin = [] if self._told else [PromptToken(0, ((self._ids[0], 0.0),))]
            self._news = (*begin, *found)

    def tell(self, message: Message) -> Message:
        """What was read and not told yet."""
        if isinstance(message, Prefill) and self._news:
            first, news = self._told, self._news
            self._told, self._news = first + len(news), ()
            return message._replace(first=first, tokens=news)
        return message

    @property
    def _first(self) -> int:
        """The first position whose row is wanted; it scores the token behind it, and the last one of a prompt none."""
        return max(0, self._told - 1)

    def _count_rows(self, start: int, stop: int) -> int:
        """How many of the positions [start, stop), the last ones, are computed with their rows."""
        first = max(start, self._first)
        return stop - first if first < min(stop, len(self._ids) - 1) else 0
