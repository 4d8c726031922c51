"""What a rider is: an optional trait of one sequence, such as a guide, penalties, pictures or log-probabilities.

A session has those that its `Open` asks for, and asks each of them at the same few places of every step. A trait that
no sequence asks for costs nothing. The registry is in registry.py, what riders are made of in opening.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from opensled.core.messages import Opened, Prefill, Verdict
from scheduler.plan import Slice
from verify_server.engine.base import Segment
from verify_server.round.drafter import Ask
from verify_server.rules.base import DraftCheck, Reading
from verify_server.rules.decide import StepResult

Message = TypeVar("Message", Opened, Prefill, Verdict)


class DecideAgain(Exception):
    """Nothing can be decided in this step, for no fault of the sequence; the next one has no draft."""


class Rider:
    """Changes nothing; each rider overrides what concerns it.

    All is called on the event loop, except for `check`. Positions and lengths count tokens of the text, its prompt
    included.
    """

    @property
    def takes_drafts(self) -> bool:
        """Whether drafts are of use."""
        return True

    @property
    def content(self) -> Mapping[int, int]:
        """By position, what the KV follows from beside the ids: see `BlockTable`."""
        return {}

    # -- before a step ------------------------------------------------------------------------------------

    def reusable(self, length: int) -> int:
        """Of the first `length` positions, those whose KV may be found instead of computed, all but the last."""
        return length

    def limit_slice(self, piece: Slice, computed: int) -> Slice:
        """The slice, which begins at `computed`; a shorter chunk where all of it would take too much memory."""
        return piece

    def segment(self, segment: Segment, stop: int) -> Segment:
        """What the engine computes; its tokens from position `stop` on are a draft."""
        return segment

    def reads(self, start: int, stop: int, decides: bool) -> tuple[Reading, ...]:
        """What is to be read of the rows of a step that computes positions [start, stop) of the text."""
        return ()

    def check(self, check: DraftCheck) -> DraftCheck:
        """What the target must mind as it decides. In the engine's thread. Raises EngineError, DecideAgain."""
        return check

    # -- after it -----------------------------------------------------------------------------------------

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """A step has decided that `news` follow the first `base` tokens, or has read a chunk. Raises EngineError."""

    def rewound(self, tokens: Sequence[int]) -> None:
        """The text was changed from outside: these are all its tokens now."""

    def ask(self, ask: Ask) -> Ask:
        """What the server's drafter is asked for."""
        return ask

    def tell(self, message: Message) -> Message:
        """A message that leaves for the reader, with what this rider has to say by it."""
        return message

    def ended(self, tokens: Sequence[int]) -> None:
        """No step computes the sequence any more; readers may still come back for what was told. `tokens`: all."""
