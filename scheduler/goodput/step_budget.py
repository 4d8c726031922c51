"""What of the ready sessions one step computes: of their drafts the tokens that are worth a row, and when it cannot
compute all, drafts are shortened before a session waits, background sessions wait before others, and every session has
its turn."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens
from scheduler.estimates import Forecast
from scheduler.plan import SessionView

BACKGROUND_S = 2.0  # seconds for which a background session lets others pass
CREDIT_S = 1.0  # seconds for which a session that is ahead of its pace lets others pass


class DraftOffer(NamedTuple):
    """A draft that a step may verify as far as it pays: a device's, or the server's own."""

    tokens: int
    forecast: Forecast  # of such drafts
    reach: tuple[float, ...] = ()  # for each token the chance that it stands with all before it; () = unknown
    depth: int = 0  # of a tree: tokens of its longest path; 0 = it is a chain


NOTHING = DraftOffer(0, Forecast(0.0, 0.0))


def most_valuable(
    offers: Sequence[DraftOffer], room: int, price: Callable[[NDArray[np.int_]], Numbers]
) -> list[int]:
    """How many tokens of each draft a step verifies: the likeliest ones of the whole batch, `room` at most.

    `price`: of the first n draft tokens, for an array of n >= 0, in tokens that the target could commit instead. As
    many are taken as makes the sum of their chances, less their price, largest.
    """
    chances = _chances(offers)
    ranked = np.sort(chances[chances >= 0])[::-1][:room]
    counts = np.arange(len(ranked) + 1)
    worth = np.concatenate(([0.0], np.cumsum(ranked))) - price(counts)
    count = int(worth.argmax())
    if not count:
        return [0] * len(offers)
    return _likeliest(chances, count, ranked[count - 1])


def _chances(offers: Sequence[DraftOffer]) -> Numbers:
    """[draft, place]: the chance that the token stands with all before it, never rising; -1 where there is none.

    Of a tree without confidences all that is known is what its depth brings: each token counts as an equal share.
    """
    tokens = np.array([offer.tokens for offer in offers])
    places = np.arange(tokens.max(initial=0))
    is_token = places < tokens[:, None]
    chances = np.full(is_token.shape, -1.0)
    told = [bool(offer.reach or offer.depth) for offer in offers]
    # All at once: row by row, a thousand drafts would take a millisecond.
    known = chain.from_iterable([_told(offer) for offer, says in zip(offers, told) if says])
    chances[is_token & np.array(told)[:, None]] = np.fromiter(known, float)
    if not all(told):
        first, later = np.array([offer.forecast[:2] for offer in offers]).T[:, :, None]
        untold = is_token & ~np.array(told)[:, None]
        chances[untold] = (first * later**places)[untold]
    return chances


def _told(offer: DraftOffer) -> Sequence[float]:
    if offer.reach:
        return offer.reach[: offer.tokens]
    share = accepted_tokens(*offer.forecast[:2], min(offer.depth, offer.tokens)) / max(1, offer.tokens)
    return [float(share)] * offer.tokens


def _likeliest(chances: Numbers, count: int, least: float) -> list[int]:
    """Of each draft its tokens among the `count` likeliest, the last of which has the chance `least`."""
    above = (chances > least).sum(axis=1)
    equal = (chances == least).sum(axis=1)
    left = np.maximum(0, count - above.sum() - (equal.cumsum() - equal))
    kept: list[int] = (above + np.minimum(equal, left)).tolist()
    return kept


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
