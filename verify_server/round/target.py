"""What computes the steps of a server, and keeps the KV of its sequences.

There are two kinds. One serves our engines: it accounts for their KV blocks, so it knows before a step what fits, and
computes exactly what is planned (`BlockTarget`). The other kind schedules by itself: it keeps the KV, may leave a
sequence of the plan out, may preempt one at any time, and says after the step how far each one is (`Progress`). What
this base class does suits the second kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opensled.core.errors import Unsupported
from scheduler.plan import Slice
from verify_server.engine.base import EngineInfo, Segment
from verify_server.kv.memory import TargetMemory
from verify_server.round.draft_stage import DraftStage, OwnDrafts
from verify_server.round.drafter import Ask
from verify_server.round.session import Session
from verify_server.round.step_item import StepItem
from verify_server.rules.base import AcceptanceResult
from verify_server.rules.decide import Outcome


class FittedStep(NamedTuple):
    """What of a plan is computed in this step."""

    work: list[StepItem]
    # Sessions with a slice that a reader waits for, but without memory
    left_out: frozenset[int] = frozenset()
    preempted: int = 0  # sessions that lost their memory to others


class Progress(NamedTuple):
    """What became of one session in a step of a target that schedules by itself."""

    # Positions of its text, as the step met it, that the KV holds now; fewer than before = it was preempted
    computed: int
    cached: int = 0  # of them, those that this step found instead of computing them
    result: AcceptanceResult | None = None  # None = nothing is decided: its draft waits for the next step


class Target(ABC):
    """One model. `step` and `draft` may run in a thread, never two at once; the rest runs beside the sessions.

    A segment says all that a target must know of a session: the tokens from `start` on, where KV that the session
    counts as computed ends. A target that has lost KV says so by `Progress`, and gets the tokens again.
    """

    facts: EngineInfo  # what never changes
    memory: TargetMemory  # who holds how much of it
    drafting: DraftStage | None = None  # the drafter beside it; None = there is none

    def refresh(self, sessions: Mapping[int, Session]) -> None:  # noqa: B027
        """Before a plan: sessions find what was computed for others."""

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """The work of those slices that its memory holds; `now` in seconds."""
        return FittedStep([sessions[piece.session].plan(piece, now) for piece in slices])

    @abstractmethod
    def step(self, work: Sequence[StepItem]) -> Sequence[Outcome | Progress]:
        """Compute and decide one step; an outcome for each of `work`.

        At least one session gets on, if need be with the KV of sessions outside the step, which may rest for long.
        Raises EngineLost if nothing can be computed any more. By any other error all sessions of the step end, so a
        target that can recover gives `Progress` instead.
        """

    def reads(self, segment: Segment) -> int:
        """How often a step reads the KV of the text before a segment."""
        return 1

    def see(self, pixels: NDArray[np.uint8]) -> Any:
        """See `TargetEngine.see`."""
        raise Unsupported(f"engine {self.facts.runtime} serves text only, no images", "images")

    def draft(self, asks: Sequence[Ask]) -> OwnDrafts:
        """Drafts for the next step; the step before is committed."""
        assert self.drafting is not None, "who asks has a place for drafts"
        return self.drafting.run(asks)

    def settle(self) -> None:
        """The step and the drafts behind it are over, and nothing is written any more."""
        if self.drafting is not None:
            self.drafting.run(())  # forgets the sessions that are over

    def close(self) -> None:  # noqa: B027
        """No step follows: end the processes that compute it."""

    def forget(self, session: Session) -> None:
        """The session is over, and no step computes it. A step over others may be under way."""
        if self.drafting is not None:
            self.drafting.forget(session.id)


def whole(slices: Sequence[Slice], sessions: Mapping[int, Session]) -> list[Slice]:
    """The slices for a target that schedules by itself: it divides prompts as it likes, and decides when it has read
    one. So each goes up to the newest token, and what is computed before a reader waits for it is left out."""
    return [
        piece
        if piece.decide
        else replace(piece, tokens=sessions[piece.session].sequence.uncomputed, decide=True)
        for piece in slices
        if not piece.ahead
    ]
