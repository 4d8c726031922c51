"""The work of one step: it verifies the draft tokens that are worth a row.

If a step cannot compute all ready sessions, drafts are shortened before a session waits, and background sessions wait
before others. Every session has its turn.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens
from scheduler.estimates import GUESS
from scheduler.plan import OfferView, SessionView

# Chosen: seconds for which others pass a background session, or a session whose long answer has no end in sight
BACKGROUND_S, LONG_S = 2.0, 0.5
NOTICED = 0.1  # chosen: maximum share of a step that sessions of low priority may add for others
WHOLE = 1e6  # above any price: a draft that was asked for as a whole is of little use as a part
PROMPTS = 0.25  # chosen: share of a full step for prompts; first tokens against the pace of answers
CREDIT_S = 1.0  # chosen: seconds for which a session that is ahead of its pace lets others pass


def verifiable(offer: OfferView) -> int:
    """The number of draft tokens that may be verified; a tree, whose size has its own limit, is verified as a whole."""
    draft, longest = offer.tokens or 0, offer.longest
    return draft if draft <= longest or (offer.depth and longest) else longest


def most_valuable(
    offers: Sequence[OfferView], room: int, price: Callable[[NDArray[np.int_]], Numbers]
) -> list[int]:
    """The number of tokens of each draft that a step verifies: the likeliest ones of the whole batch, at most `room`.

    `price`: the price of the first n draft tokens, for an array of n >= 0, in tokens that the target could commit
    instead. The number of tokens maximises the sum of their chances minus their price.
    """
    sizes = np.array([verifiable(each) for each in offers])
    chances = _chances(offers, sizes)
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


def _chances(offers: Sequence[OfferView], sizes: NDArray[np.int_]) -> Numbers:
    """Survival chances of all tokens of the first draft, then of the next ones."""
    forecasts = [each.forecast or GUESS for each in offers]
    first, later = np.array([each.first for each in forecasts]), np.array([each.later for each in forecasts])
    place = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    chances: Numbers = np.repeat(first, sizes) * np.repeat(later, sizes) ** place
    told = [place for place, each in enumerate(offers) if each.reach or each.depth or each.least]
    if told:  # all at once: row by row, a thousand drafts would take a millisecond
        rows = [_told(offers[place], int(sizes[place])) for place in told]
        chances[np.repeat(np.isin(np.arange(len(sizes)), told), sizes)] = [*chain.from_iterable(rows)]
    return chances


def _told(offer: OfferView, tokens: int) -> Sequence[float]:
    """Survival chances of a draft that a rule needs as a whole, or with confidences, or of a tree without these: it
    spreads its expected accepted tokens evenly."""
    if offer.least or offer.reach:
        return (WHOLE,) * tokens if offer.least else offer.reach[:tokens]
    accepted = accepted_tokens(*(offer.forecast or GUESS)[:2], min(offer.depth, tokens))
    return [float(accepted) / max(1, tokens)] * tokens


def reserve(
    deciding: Sequence[SessionView],
    prompts: Sequence[SessionView],
    budget: int,
    urgency: Callable[[SessionView], float],
) -> int:
    """Keep tokens of a step for prompts, before sessions with one token to compute; a step of one token goes to the
    session with the smallest urgency."""
    if not prompts or not deciding:
        return 0
    if budget == 1:
        return int(min(map(urgency, prompts)) < min(map(urgency, deciding)))
    return min(ceil(PROMPTS * budget), sum([session.uncomputed for session in prompts]))


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
