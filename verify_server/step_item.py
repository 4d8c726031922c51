"""What travels to the target and back: the work of one session in one step."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from opensled.messages import Draft, DraftBlock
from verify_server.acceptance.base import DraftCheck, Reading
from verify_server.engine.base import Segment
from verify_server.own_draft import NO_DRAFT

SessionT = TypeVar("SessionT")  # `Session`, or what a simulation or a test has in its place


class StepItem(NamedTuple, Generic[SessionT]):
    """What one step computes for one session."""

    session: SessionT
    segment: Segment
    check: DraftCheck | None  # None: a chunk of a prompt, nothing to decide
    draft: Draft | None  # the draft this step answers
    hint: int | None = None  # goes with the verdict
    rest: DraftBlock = NO_DRAFT  # what its device drafted beyond the text,
    drafted: DraftBlock = NO_DRAFT  # what of that is verified,
    own: DraftBlock = NO_DRAFT  # and what of the server's own one
    ask: int = 0  # tokens that the server's drafter is to draft after the step
    blocks: tuple[int, ...] = ()  # all that the session holds, where the drafter needs them
    since: float = 0.0  # when the draft came
    reads: tuple[Reading, ...] = ()  # what its riders want to know of its rows
