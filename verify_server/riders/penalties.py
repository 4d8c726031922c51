"""Penalties count the tokens of an answer: see opensled/core/penalties.py."""

from __future__ import annotations

from collections.abc import Sequence

from opensled.core.penalties import TokenCounts
from verify_server.riders.opening import Opening
from verify_server.round.drafter import Ask
from verify_server.round.rider import Rider
from verify_server.rules.base import DraftCheck
from verify_server.rules.decide import StepResult


class PenaltyCounts(Rider):
    """Counts all that is committed behind the prompt."""

    def __init__(self, prompt_length: int, tokens: Sequence[int]) -> None:
        """`tokens`: the text, prompt included."""
        self._prompt_length = prompt_length
        self.rewound(tokens)

    @classmethod
    async def of(cls, opening: Opening) -> PenaltyCounts | None:
        """See `RIDERS`."""
        return cls(len(opening.prompt_ids), opening.tokens) if opening.message.params.penalizes else None

    def check(self, check: DraftCheck) -> DraftCheck:
        """With the tokens before each row."""
        return check._replace(emitted=self._emitted.along(check.ids, check.parents))

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """The answer grew."""
        self._emitted.add(news)

    def rewound(self, tokens: Sequence[int]) -> None:
        """Count anew."""
        self._emitted = TokenCounts(tokens[self._prompt_length :])

    def ask(self, ask: Ask) -> Ask:
        """A drafter counts on from here."""
        return ask._replace(emitted=self._emitted)
