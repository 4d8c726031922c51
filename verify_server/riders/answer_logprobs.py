"""Log-probabilities of the tokens of an answer, each with those of the likeliest tokens in its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opensled.core.messages import TokenLogprobs, Verdict
from verify_server.riders.opening import Opening
from verify_server.round.rider import Message, Rider
from verify_server.rules.base import Reading, StepRows
from verify_server.rules.decide import StepResult


@dataclass(frozen=True)
class LogprobsReading(Reading):
    """Finds those of the decided tokens, each with `count` of the likeliest."""

    count: int

    def read(self, rows: StepRows) -> list[TokenLogprobs]:
        """See `Scores.logprobs`."""
        return rows.scores.logprobs(rows.rows, rows.ids, self.count)


class AnswerLogprobs(Rider):
    """Remembers those of the last tokens: of all that were committed here, or that a server above has told."""

    def __init__(self, count: int | None = None) -> None:
        """`count`: how many of the likeliest tokens to tell in each place; None = nothing is read here."""
        self._reads = () if count is None else (LogprobsReading(count),)
        self._logprobs: list[TokenLogprobs] = []

    @classmethod
    async def of(cls, opening: Opening) -> AnswerLogprobs | None:
        """See `RIDERS`."""
        count = opening.message.top_logprobs
        return None if count is None else cls(count)

    def add(self, logprobs: Iterable[TokenLogprobs]) -> None:
        """Of tokens that are confirmed."""
        self._logprobs.extend(logprobs)

    def reads(self, start: int, stop: int, decides: bool) -> tuple[Reading, ...]:
        """Those of the tokens that are decided."""
        return self._reads if decides else ()

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """As many as tokens."""
        self.add(outcome.read.get(LogprobsReading, ())[: len(news)])

    def tell(self, message: Message) -> Message:
        """Those of all tokens of a verdict that are known."""
        if isinstance(message, Verdict) and self._logprobs:
            confirmed = len(message.tokens) - message.vetted
            if confirmed:
                return message._replace(logprobs=tuple(self._logprobs[-confirmed:]))
        return message
