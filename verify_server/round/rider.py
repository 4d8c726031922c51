"""The base class of riders: optional traits of one sequence, such as a guide, penalties, pictures, log-probabilities.

A session has the riders that its `Open` requests, and calls each of them at the same few points of every step. A trait
that no sequence requests costs nothing. The registry is in registry.py; opening.py makes riders.
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
    """This step cannot decide anything, without a fault of the sequence; the next step has no draft."""


class Rider:
    """The base class changes nothing; each rider overrides the methods that concern it.

    The event loop calls all methods except `check`. Positions and lengths count tokens of the text, prompt included.
    """

    @property
    def takes_drafts(self) -> bool:
        """Whether drafts are of use."""
        return True

    @property
    def content(self) -> Mapping[int, int]:
        """By position, data in addition to the ids that the KV depends on: see `BlockTable`."""
        return {}

    # -- before a step ------------------------------------------------------------------------------------

    def reusable(self, length: int) -> int:
        """The number of the first `length` positions whose KV may be found instead of computed, never the last one."""
        return length

    def limit_slice(self, piece: Slice, computed: int) -> Slice:
        """The slice, which begins at `computed`, or a shorter chunk if it would need too much memory."""
        return piece

    def segment(self, segment: Segment, stop: int) -> Segment:
        """The segment for the engine; its tokens from position `stop` on are a draft."""
        return segment

    def reads(self, start: int, stop: int, decides: bool) -> tuple[Reading, ...]:
        """The readings from the rows of a step that computes positions [start, stop) of the text."""
        return ()

    def check(self, check: DraftCheck) -> DraftCheck:
        """The check with the conditions for the target's decision. Runs in the engine's thread. Raises EngineError,
        DecideAgain."""
        return check

    # -- after it -----------------------------------------------------------------------------------------

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """A step has decided that `news` follow the first `base` tokens, or has read a chunk. Raises EngineError."""

    def rewound(self, tokens: Sequence[int]) -> None:
        """The text was changed from outside; `tokens`: all its tokens now."""

    def ask(self, ask: Ask) -> Ask:
        """The request to the server's drafter."""
        return ask

    def tell(self, message: Message) -> Message:
        """The message for the reader, with the fields of this rider."""
        return message

    def ended(self, tokens: Sequence[int]) -> None:
        """No step computes the sequence any more; readers may still come back for its messages. `tokens`: all."""
