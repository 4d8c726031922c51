"""The view of a session for scheduling policies."""

from __future__ import annotations

from typing import Protocol

from scheduler.plan import NO_OFFER, SessionView
from verify_server.round.outbox import Reader
from verify_server.round.sequence import Sequence
from verify_server.round.session_timing import SessionTiming
from verify_server.round.sources import DraftSources
from verify_server.round.terms import Terms

LONG_ANSWER = 1024  # tokens; chosen: longer than people read at once


class _Viewed(Protocol):
    """The parts of a session that its view is made from."""

    id: int
    sequence: Sequence
    sources: DraftSources
    timing: SessionTiming
    terms: Terms
    reader: Reader

    @property
    def server_drives(self) -> bool: ...


def view_of(session: _Viewed, now: float) -> SessionView:
    """The view at this moment; arguments by position, because each step makes many views."""
    sequence, timing, sources, reader = session.sequence, session.timing, session.sources, session.reader
    length, offer = len(sequence), sources.device.offer
    servers = tuple([each.view(sources.limits, length, now) for each in sources.servers])
    return SessionView(
        session.id,
        sequence.uncomputed,
        session.server_drives,
        timing.waiting_since,
        sources.device.view(sources.limits, length, now),
        next((view for view in servers if view.tokens), NO_OFFER),
        servers,
        reader.outbox.full,
        not reader.present or sequence.waits,
        sequence.computed,
        offer.since if offer else timing.waiting_since,
        timing.pace,
        timing.due(length),
        session.terms.background,
        sequence.ends.last_length - length,
        _runs_on(session),
    )


def _runs_on(session: _Viewed) -> bool:
    """Whether its answer is long and only the context would end it: a background task without a bound."""
    sequence = session.sequence
    is_long = len(sequence) - sequence.prompt_length >= LONG_ANSWER
    return is_long and sequence.prompt_length + session.terms.params.max_tokens > sequence.ends.last_length
