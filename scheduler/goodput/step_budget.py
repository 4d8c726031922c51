"""What of the ready sessions one step computes, when it cannot compute all: drafts are shortened before anybody waits,
background sessions wait before others, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

import numpy as np

from scheduler.estimates import Forecast
from scheduler.plan import SessionView

SURE = Forecast(first=inf, later=1.0)  # stands for a forecast that is not known: nothing is cut
PROMPTS = 0.25  # share of a full step that is kept for prompts, if there are any
BACKGROUND_S = 2.0  # seconds for which a background session lets others pass
CREDIT_S = 1.0  # seconds for which a session that is ahead of its pace lets others pass


def shortest(drafts: Sequence[int], room: int) -> int:
    """The longest length to which all `drafts` can be cut so that together they fit into `room`."""
    drafts_of = Counter(drafts)
    length = max(drafts_of, default=0)
    while length and sum([min(length, draft) * count for draft, count in drafts_of.items()]) > room:
        length -= 1
    return length


def worthwhile(
    drafts: Sequence[int], forecasts: Sequence[Forecast], asked: Sequence[bool], price: float
) -> list[int]:
    """`drafts` cut to the tokens whose chance to be accepted is at least `price` > 0.

    A draft that nobody `asked` for, as that of a probe, has told what it can: unless it is worth it whole, it is left.
    """
    first, later = np.array([(each.first, each.later) for each in forecasts]).T
    with np.errstate(divide="ignore", invalid="ignore"):
        lengths = 1 + np.floor(np.log(price / first) / np.log(later))
    lengths = np.where(first < price, 0, np.where(later < 1, lengths, np.inf))
    whole = lengths >= drafts
    kept: list[int] = np.where(whole, drafts, np.where(asked, lengths, 0)).astype(int).tolist()
    return kept


def pays(depth: int, tokens: int, forecast: Forecast, price: float) -> bool:
    """Whether a tree is worth its `tokens` as a whole, if what is accepted of it is what a chain of its depth brings.

    Of single branches nobody knows more than that the likeliest tokens come first.
    """
    first, later = forecast.first, forecast.later
    expected = depth if later >= 1 else (1 - later**depth) / (1 - later)
    return first * expected >= price * tokens


def urgency(session: SessionView) -> float:
    """Who has the smallest is served first. It stands still while a session waits, so everybody's turn comes."""
    due = session.ready_since
    if session.pace:
        due = min(max(due, session.due), due + CREDIT_S)
    return due + BACKGROUND_S * session.background


def in_turn(sessions: Sequence[SessionView], places: int) -> Sequence[SessionView]:
    """The `places` most urgent ones; all, in their order, if there are no more."""
    if len(sessions) <= places:
        return sessions
    return sorted(sessions, key=urgency)[:places]
