"""Guided answers: masks for the target's logits, by a grammar that follows the text (verify_server/text/guide.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from opensled.core.messages import Opened
from verify_server.riders.opening import Opening
from verify_server.round.rider import DecideAgain, Message, Rider
from verify_server.rules.base import DraftCheck
from verify_server.rules.decide import StepResult
from verify_server.text.guide import Constraint, GrammarRebuilt


def is_guided(riders: Iterable[Rider]) -> bool:
    """Whether one of them holds a grammar."""
    return any(isinstance(rider, GuideMasks) for rider in riders)


class GuideMasks(Rider):
    """Knows all that is committed, and what may follow it."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint: Constraint | None = constraint  # None: the answer is over
        self._coarse_tools = constraint.coarse_tools

    @classmethod
    async def of(cls, opening: Opening) -> GuideMasks | None:
        """See `RIDERS`."""
        constraint = await opening.inputs.constraint(opening.message, opening.prompt_ids, opening.tenant)
        return None if constraint is None else cls(constraint)

    @property
    def takes_drafts(self) -> bool:
        """See `Constraint`."""
        return self.constraint is None or self.constraint.takes_drafts

    def check(self, check: DraftCheck) -> DraftCheck:
        """With the masks of all rows."""
        assert self.constraint is not None, "what is over is not decided"
        try:
            return check._replace(masks=self.constraint.next_masks(check.ids, check.parents))
        except GrammarRebuilt as error:
            raise DecideAgain from error

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """The grammar goes on."""
        assert self.constraint is not None, "what is over commits nothing"
        self.constraint.commit(news)

    def tell(self, message: Message) -> Message:
        """The names of tools whose arguments are held less closely."""
        if isinstance(message, Opened) and self._coarse_tools:
            return replace(message, coarse_tools=self._coarse_tools)
        return message

    def ended(self, tokens: Sequence[int]) -> None:
        """A grammar takes some hundred KB."""
        self.constraint = None
