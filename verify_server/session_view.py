"""What a policy sees of a session."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from scheduler.plan import SessionView
from verify_server.trees import depth

if TYPE_CHECKING:  # it imports this file
    from verify_server.session import Session


def view_of(session: Session) -> SessionView:
    """The session as it is now; by position, for many are made for each step."""
    pending, device = session.pending, session.estimate
    return SessionView(
        session.id,
        len(session.tokens) - session.computed,
        len(pending.rest.tokens) if pending else None,
        session.server_drives,
        session.waiting_since,
        session.outbox.full,
        not session.has_reader,
        session.computed,
        pending.since if pending else session.waiting_since,
        session.pace,
        _due(session),
        session.background,
        session.hint,
        device.forecast if session.latest or device.drafts else None,
        session.longest(),
        session.asked_since,
        depth(pending.rest.tokens, pending.rest.parents) if pending and pending.rest.parents else 0,
    )


def _due(session: Session) -> float:
    """When the next token must be there to keep the pace, counted from the first one."""
    if not session.pace:
        return inf
    if session.begun is None:
        return session.waiting_since
    return session.begun + (len(session.tokens) + 1 - session.begun_length) / session.pace
