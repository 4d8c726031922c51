"""Marks of the tokens that a loose rule let stand though the target's own are others (docs/loose-rules.md)."""

from __future__ import annotations

from opensled.core.messages import Verdict
from verify_server.riders.opening import Opening
from verify_server.round.counters import LoopStats
from verify_server.round.rider import Message, Rider
from verify_server.rules.base import AcceptanceResult
from verify_server.rules.decide import StepResult


class LooseMarks(Rider):
    """Remembers their positions."""

    def __init__(self, stats: LoopStats) -> None:
        """`stats`: where they are counted, too."""
        self._stats = stats
        self._positions: list[int] = []

    @classmethod
    async def of(cls, opening: Opening) -> LooseMarks | None:
        """See `RIDERS`."""
        return None if opening.rule.lossless else cls(opening.stats)

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """Those that became text."""
        if isinstance(outcome, AcceptanceResult):
            loose = [base + index for index in outcome.loose if index < len(news)]
            self._positions += loose
            self._stats.loose += len(loose)

    def tell(self, message: Message) -> Message:
        """Their places in a verdict."""
        if isinstance(message, Verdict):
            base = message.base
            loose = tuple([position - base for position in self._positions if position >= base])
            return message._replace(loose=loose)
        return message
