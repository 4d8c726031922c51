"""What scheduling policies see of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.plan import SessionView
from verify_server.trees import depth

if TYPE_CHECKING:
    from verify_server.session import Session


def view_of(session: Session, now: float) -> SessionView:
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
        not session.has_reader,
        sequence.computed,
        pending.since if pending else timing.waiting_since,
        timing.pace,
        timing.due(length),
        session.background,
        session.turn.hint,
        timing.estimate.forecast if session.turn.latest or timing.estimate.drafts else None,
        session.budget.longest(session.limits.max_draft, length, now),
        timing.asked_since,
        depth(pending.rest.tokens, pending.rest.parents) if pending and pending.rest.parents else 0,
        len(own.block.tokens) if own else 0,
        own.estimate.forecast if own else None,
        own.share.ratio if own else 1.0,
        own.reach if own else (),
        length - own.read if own and own.needs_kv else 0,
        sequence.ends.last_length - length,
        pending.reach if pending else (),
    )
