"""What travels to the target and back: the work of one session in one step."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from verify_server.engine.base import Segment
from verify_server.round.sources import NO_DRAFTS, StepDrafts
from verify_server.rules.base import DraftCheck, Reading

SessionT = TypeVar("SessionT")  # `Session`, or what a simulation or a test has in its place


class StepItem(NamedTuple, Generic[SessionT]):
    """What one step computes for one session."""

    session: SessionT
    segment: Segment
    check: DraftCheck | None  # None: a chunk of a prompt, nothing to decide
    drafts: StepDrafts = NO_DRAFTS  # that waited, with what of them is verified
    hint: int | None = None  # goes with the verdict
    ask: int = 0  # tokens that the server's drafter is to draft after the step
    blocks: tuple[int, ...] = ()  # all that the session holds, where the drafter needs them
    reads: tuple[Reading, ...] = ()  # what its riders want to know of its rows
