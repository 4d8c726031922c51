"""What of the ready sessions one step computes, when it cannot compute all: drafts are shortened before a session
waits, background sessions wait before others, and every session has its turn."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from math import inf
from operator import neg

import numpy as np

from hw_profiles.speculation import accepted_tokens, tokens_above
from scheduler.estimates import Forecast
from scheduler.plan import SessionView

BACKGROUND_S = 2.0  # seconds for which a background session lets others pass
CREDIT_S = 1.0  # seconds for which a session that is ahead of its pace lets others pass
CERTAIN = Forecast(first=inf, later=1.0)  # stands for a forecast that is not known: nothing is cut


def longest_that_fits(drafts: Sequence[int], room: int) -> int:
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

    A draft that was not `asked` for, such as a probe's, has told what it can: it is left out unless all of it is worth
    the price.
    """
    first, later = np.array([(each.first, each.later) for each in forecasts]).T
    lengths = tokens_above(first, later, price)
    kept: list[int] = np.where(lengths >= drafts, drafts, np.where(asked, lengths, 0)).astype(int).tolist()
    return kept


def likelier(reach: Sequence[float], price: float) -> int:
    """How many tokens of a chain stand with a chance of at least `price`; the chances fall along the chain."""
    return bisect_right(reach, -price, key=neg)


def pays(depth: int, tokens: int, forecast: Forecast, price: float) -> bool:
    """Whether a tree is worth its `tokens` as a whole, if it brings what a chain of its depth brings.

    Single branches have no forecast; all that is known is that the likeliest tokens come first.
    """
    return bool(accepted_tokens(forecast.first, forecast.later, depth) >= price * tokens)


def urgency(session: SessionView) -> float:
    """The smallest is served first. It stands still while a session waits, so every session has its turn."""
    due = session.ready_since
    if session.pace:
        due = min(max(due, session.due), due + CREDIT_S)
    return due + BACKGROUND_S * session.background


def most_urgent(sessions: Sequence[SessionView], places: int) -> Sequence[SessionView]:
    """The `places` most urgent ones; all, in their order, if there are no more."""
    if len(sessions) <= places:
        return sessions
    return sorted(sessions, key=urgency)[:places]
