"""The work of one session in one step, on its way to the target and back."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from verify_server.engine.base import Segment
from verify_server.round.sources import NO_DRAFTS, StepDrafts
from verify_server.rules.base import DraftCheck, Reading

SessionT = TypeVar("SessionT")  # `Session`, or what a simulation or a test has in its place


class StepItem(NamedTuple, Generic[SessionT]):
    """The work of one step for one session."""

    session: SessionT
    segment: Segment
    check: DraftCheck | None  # None: a chunk of a prompt, nothing to decide
    drafts: StepDrafts = NO_DRAFTS  # its drafts, with the parts to verify
    hint: int | None = None  # sent with the verdict
    ask: int = 0  # number of tokens that a drafter of the server drafts after the step,
    drafter: int = 0  # this one
    reads: tuple[Reading, ...] = ()  # readings of its riders from its rows
