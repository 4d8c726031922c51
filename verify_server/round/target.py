"""What computes the steps of a server, and keeps the memory of its sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from scheduler.plan import Slice
from verify_server.acceptance.decide import Outcome
from verify_server.drafting.base import Ask
from verify_server.drafting.stage import DraftStage, OwnDrafts
from verify_server.engine.base import EngineInfo, Segment
from verify_server.kv.blocks import BlockPool
from verify_server.session import Session
from verify_server.step_item import StepItem


class FittedStep(NamedTuple):
    """What of a plan is computed in this step."""

    work: list[StepItem]
    left_out: frozenset[int] = (
        frozenset()
    )  # sessions with a slice that a reader waits for, but without memory
    preempted: int = 0  # sessions that lost their memory to others


class Target(Protocol):
    """One model. `step` and `draft` may run in a thread, never two at once; the rest runs beside the sessions."""

    facts: EngineInfo  # what never changes
    pool: BlockPool  # who holds how much of its memory
    drafting: DraftStage | None  # the drafter beside it; None = there is none

    def refresh(self, sessions: Mapping[int, Session]) -> None:
        """Before a plan: sessions find what was computed for others."""

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """The work of those slices that its memory holds; `now` in seconds."""

    def step(self, work: Sequence[StepItem]) -> list[Outcome]:
        """Compute and decide one step. Raises EngineLost if nothing can be computed any more."""

    def reads(self, segment: Segment) -> int:
        """How often a step reads the memory of the text before a segment."""

    def draft(self, asks: Sequence[Ask]) -> OwnDrafts:
        """Drafts for the next step; the step before is committed."""

    def hold(self) -> None:
        """A step is over. What sessions give back from now on stays taken until `settle`: drafts are written there."""

    def settle(self) -> None:
        """The drafts are over, too: nothing is written any more."""

    def forget(self, session: Session) -> None:
        """The session is over, and no step computes it."""
