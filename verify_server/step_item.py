"""What a step computes for one session, and what comes of it. Only this travels to the engine's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opensled.messages import Draft, DraftBlock
from verify_server.acceptance.base import AcceptanceResult, DraftCheck
from verify_server.engine.base import Segment

if TYPE_CHECKING:  # it imports this file
    from verify_server.session import Session


class PendingDraft(NamedTuple):
    """A draft not yet planned: as it arrived, what of it still drafts beyond the truth, and when it came."""

    draft: Draft
    rest: DraftBlock
    since: float


class StepItem(NamedTuple):
    """What one step computes for one session."""

    session: Session
    segment: Segment
    question: DraftCheck | None  # None: a chunk of a prompt, nothing to decide
    draft: Draft | None  # the draft this step answers
    hint: int | None = None  # goes with the verdict


def decided(question: DraftCheck, decision: AcceptanceResult) -> tuple[int, ...]:
    """The accepted ids and the one after them."""
    if decision.path:
        return (*[question.draft[index].id for index in decision.path], decision.next_token)
    return (*question.ids[: decision.num_accepted], decision.next_token)


def moves(question: DraftCheck, decision: AcceptanceResult) -> list[tuple[int, int]]:
    """From where to where the KV of a tree's accepted tokens must go, so that they follow the text in order."""
    first = question.position
    return [(first + index, first + place) for place, index in enumerate(decision.path) if index != place]
