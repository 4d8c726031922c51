"""What scheduling policies see of a session."""

from __future__ import annotations

from typing import Protocol

from opensled.turns import Turn
from scheduler.plan import SessionView
from verify_server.draft_budget import DraftBudget
from verify_server.outbox import Outbox
from verify_server.own_draft import OwnDraft
from verify_server.pending_draft import PendingDraft
from verify_server.sequence import Sequence
from verify_server.session_timing import SessionTiming
from verify_server.terms import Terms
from verify_server.trees import depth

LONG_ANSWER = 1024  # tokens; chosen: longer than people read at once


class _Viewed(Protocol):
    """What of a session its view is made of."""

    id: int
    sequence: Sequence
    timing: SessionTiming
    pending: PendingDraft | None
    own: OwnDraft | None
    budget: DraftBudget
    terms: Terms

    @property
    def turn(self) -> Turn: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def has_reader(self) -> bool: ...

    @property
    def server_drives(self) -> bool: ...


def view_of(session: _Viewed, now: float) -> SessionView:
    """The view at this moment; by position, for many are made for each step."""
    sequence, timing, pending, own = session.sequence, session.timing, session.pending, session.own
    length = len(sequence)
    return SessionView(
        session.id,
        sequence.uncomputed,
        len(pending.rest.tokens) if pending else None,
        session.server_drives,
        timing.waiting_since,
        session.outbox.full,
        not session.has_reader or sequence.waits,
        sequence.computed,
        pending.since if pending else timing.waiting_since,
        timing.pace,
        timing.due(length),
        session.terms.background,
        session.turn.hint,
        timing.estimate.forecast if session.turn.latest or timing.estimate.drafts else None,
        session.budget.longest(session.terms.limits.max_draft, length, now),
        timing.asked_since,
        depth(pending.rest.tokens, pending.rest.parents) if pending and pending.rest.parents else 0,
        len(own.block.tokens) if own else 0,
        own.estimate.forecast if own else None,
        own.share.ratio if own else 1.0,
        own.reach if own else (),
        length - own.read if own and own.needs_kv and not own.reads_blocks else 0,
        sequence.ends.last_length - length,
        pending.reach if pending else (),
        session.terms.limits.least_draft,
        _runs_on(session),
    )


def _runs_on(session: _Viewed) -> bool:
    """Whether its answer is long, and only the context would end it: a background task that nobody bounded."""
    sequence = session.sequence
    is_long = len(sequence) - sequence.prompt_length >= LONG_ANSWER
    return is_long and sequence.prompt_length + session.terms.params.max_tokens > sequence.ends.last_length
