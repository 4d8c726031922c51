"""What of the ready sessions one step computes, when it cannot compute all: drafts are shortened before anybody waits,
background sessions wait before others, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.plan import SessionView

PROMPTS = 0.25  # share of a full step that is kept for prompts, if there are any
BACKGROUND_S = 2.0  # seconds for which a background session lets others pass
CREDIT_S = 1.0  # seconds for which a session that is ahead of its pace lets others pass


def shortest(drafts: Sequence[int], room: int) -> int:
    """The longest length to which all `drafts` can be cut so that together they fit into `room`."""
    length = max(drafts, default=0)
    while length and sum([min(length, draft) for draft in drafts]) > room:
        length -= 1
    return length


def urgency(session: SessionView) -> float:
    """Who has the smallest is served first. It stands still while a session waits, so everybody's turn comes."""
    due = session.ready_since
    if session.pace:
        due = min(max(due, session.due), due + CREDIT_S)
    return due + BACKGROUND_S * session.background


def in_turn(sessions: Sequence[SessionView], places: int) -> Sequence[SessionView]:
    """The `places` most urgent ones."""
    if len(sessions) <= places:
        return sessions
    return sorted(sessions, key=urgency)[:places]
