"""A target computes the steps of a server, and keeps the KV of its sequences.

`BlockTarget` serves our engines: it manages their KV blocks, so it knows before a step which slices fit. The methods of
this base class suit a target without such limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
from verify_server.rules.decide import Outcome


class FittedStep(NamedTuple):
    """The part of a plan that this step computes."""

    work: list[StepItem]
    # Sessions without memory for their slice, although a reader waits for it
    left_out: frozenset[int] = frozenset()
    preempted: int = 0  # sessions that lost their memory to others


class Target(ABC):
    """One model. `step` and `draft` may run in a thread, never two at once; the rest runs beside the sessions.

    A segment holds all that a target must know about a session: its tokens from `start` on; the KV before `start` is
    computed.
    """

    facts: EngineInfo  # constant facts
    memory: TargetMemory  # KV memory of each session
    drafting: DraftStage | None = None  # the server's drafters; None = there are none

    def refresh(self, sessions: Mapping[int, Session]) -> None:  # noqa: B027
        """Before a plan: let sessions adopt KV that was computed for others."""

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """The work of the slices that fit into its memory; `now` in seconds."""
        return FittedStep([sessions[piece.session].plan(piece, now) for piece in slices])

    @abstractmethod
    def step(self, work: Sequence[StepItem]) -> Sequence[Outcome]:
        """Compute and decide one step; an outcome for each of `work`. An error ends all sessions of the step."""

    def reads(self, segment: Segment) -> int:
        """The number of times that a step reads the KV before a segment."""
        return 1

    def see(self, pixels: NDArray[np.uint8]) -> Any:
        """See `TargetEngine.see`."""
        raise Unsupported(f"engine {self.facts.runtime} serves text only, no images", "images")

    def draft(self, asks: Sequence[Ask]) -> list[OwnDrafts]:
        """Server drafts for the next step, of each drafter that is asked; the previous step is committed."""
        assert self.drafting is not None, "who asks has a place for drafts"
        return self.drafting.run(asks)

    def settle(self) -> None:
        """The step and its server drafts are over, and nothing is written any more."""
        if self.drafting is not None:
            self.drafting.run(())  # forgets the sessions that are over

    def forget(self, session: Session) -> None:
        """The session is over, and no step computes it. A step over others may be under way."""
        if self.drafting is not None:
            self.drafting.forget(session)
