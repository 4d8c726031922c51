"""The work of one step: it verifies the draft tokens that are worth a row.

If a step cannot compute all ready sessions, drafts are shortened before a session waits, and background sessions wait
before others. Every session has its turn.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens
from scheduler.estimates import Forecast
from scheduler.plan import SessionView

# Chosen: seconds for which others pass a background session, or a session whose long answer has no end in sight
BACKGROUND_S, LONG_S = 2.0, 0.5
NOTICED = 0.1  # chosen: maximum share of a step that sessions of low priority may add for others
CREDIT_S = 1.0  # chosen: seconds for which a session that is ahead of its pace lets others pass


class DraftOffers(NamedTuple):
    """Drafts of devices and server drafts that a step may verify, as the columns of a table: making an object for each
    would take as long as weighing them."""

    tokens: Sequence[int]
    forecasts: Sequence[Forecast]  # for drafts of the same source
    # For each token, the chance that it and all before it are accepted; () = unknown
    reach: Sequence[tuple[float, ...]]
    depths: Sequence[int]  # of a tree: tokens of its longest path; 0 = it is a chain


def most_valuable(offers: DraftOffers, room: int, price: Callable[[NDArray[np.int_]], Numbers]) -> list[int]:
    """The number of tokens of each draft that a step verifies: the likeliest ones of the whole batch, at most `room`.

    `price`: the price of the first n draft tokens, for an array of n >= 0, in tokens that the target could commit
    instead. The number of tokens maximises the sum of their chances minus their price.
    """
    chances, sizes = _chances(offers), np.array(offers.tokens, int)
    ranked = np.sort(chances)[::-1][:room]
    worth = np.concatenate(([0.0], ranked.cumsum())) - price(np.arange(len(ranked) + 1))
    count = int(worth.argmax())
    least = ranked[count - 1] if count else np.inf
    taken = chances > least
    # Chances never rise within a draft, so that what is taken of each is its beginning; of equal ones the first.
    taken[np.flatnonzero(chances == least)[: count - np.count_nonzero(taken)]] = True
    kept: list[int] = np.bincount(
        np.repeat(np.arange(len(sizes)), sizes)[taken], minlength=len(sizes)
    ).tolist()
    return kept


def _chances(offers: DraftOffers) -> Numbers:
    """Survival chances of all tokens of the first draft, then of the next ones."""
    tokens = np.array(offers.tokens, int)
    first = np.array([each.first for each in offers.forecasts])
    later = np.array([each.later for each in offers.forecasts])
    place = np.arange(tokens.sum()) - np.repeat(tokens.cumsum() - tokens, tokens)
    chances: Numbers = np.repeat(first, tokens) * np.repeat(later, tokens) ** place
    told = [place for place, each in enumerate(offers.reach) if each or offers.depths[place]]
    if told:  # all at once: row by row, a thousand drafts would take a millisecond
        rows = [offers.reach[place][: offers.tokens[place]] or _spread(offers, place) for place in told]
        chances[np.repeat(np.isin(np.arange(len(tokens)), told), tokens)] = [*chain.from_iterable(rows)]
    return chances


def _spread(offers: DraftOffers, place: int) -> Sequence[float]:
    """Survival chances of a tree without confidences: it spreads its expected accepted tokens evenly."""
    tokens = offers.tokens[place]
    depth = min(offers.depths[place], tokens)
    return [float(accepted_tokens(*offers.forecasts[place][:2], depth)) / max(1, tokens)] * tokens


def short_first(prompts: Sequence[SessionView], budget: int) -> list[SessionView]:
    """Prompts by urgency, but short ones first, up to half of the `budget`, so that long ones go on, too."""
    room, short, long = budget // 2, [], []
    for session in prompts:
        if session.uncomputed <= room and not session.background:
            room -= session.uncomputed
            short.append(session)
        else:
            long.append(session)
    return short + long


def urgency(session: SessionView) -> float:
    """The session with the smallest urgency is served first. It does not change while a session waits, so every session
    has its turn."""
    since = due = session.ready_since
    if session.pace and session.due > since:
        due = session.due if session.due < since + CREDIT_S else since + CREDIT_S
    return due + _gives_way_s(session)


def _gives_way_s(session: SessionView) -> float:
    if session.background:
        return BACKGROUND_S
    return LONG_S if session.runs_on else 0.0


def in_turn(
    sessions: Sequence[SessionView], now: float, step_s: Callable[[Sequence[SessionView]], float]
) -> Sequence[SessionView]:
    """The sessions of a step, without those that still let others pass if that makes the step noticeably shorter."""
    waiting = [session for session in sessions if now - session.ready_since >= _gives_way_s(session)]
    watched = any(not _gives_way_s(session) for session in waiting)
    if not watched or len(waiting) == len(sessions):
        return sessions
    return waiting if step_s(waiting) * (1 + NOTICED) < step_s(sessions) else sessions


def most_urgent(sessions: Sequence[SessionView], places: int) -> Sequence[SessionView]:
    """The `places` most urgent sessions; if there are no more than that, all in their order."""
    if len(sessions) <= places:
        return sessions
    return sorted(sessions, key=urgency)[:places]
