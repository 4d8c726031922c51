"""What of the ready sessions one step computes: of their drafts the tokens that are worth a row, and when it cannot
compute all, drafts are shortened before a session waits, background sessions wait before others, and every session has
its turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens
from scheduler.estimates import Forecast
from scheduler.plan import SessionView

BACKGROUND_S = 2.0  # seconds for which a background session lets others pass
CREDIT_S = 1.0  # seconds for which a session that is ahead of its pace lets others pass


@dataclass(slots=True)
class DraftOffer:
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
    tokens = np.array([offer.tokens for offer in offers], int)
    chances = _chances(offers, tokens)
    ranked = np.sort(chances)[::-1][:room]
    counts = np.arange(len(ranked) + 1)
    worth = np.concatenate(([0.0], np.cumsum(ranked))) - price(counts)
    count = int(worth.argmax())
    if not count:
        return [0] * len(offers)
    return _likeliest(chances, tokens, count, ranked[count - 1])


def _chances(offers: Sequence[DraftOffer], tokens: NDArray[np.int_]) -> Numbers:
    """For each of the `tokens` of the first draft, then of the next ones, the chance that it stands with all before it:
    never rising within a draft.

    Of a tree without confidences all that is known is what its depth brings: each token counts as an equal share.
    """
    told = [_told(offer) if offer.reach or offer.depth else None for offer in offers]
    # All at once: row by row, a thousand drafts would take a millisecond.
    known = np.fromiter(chain.from_iterable([each for each in told if each is not None]), float)
    is_untold = np.array([each is None for each in told])
    if not is_untold.any():
        return known
    guesses = [offer.forecast for offer, each in zip(offers, told) if each is None]
    first = np.array([guess.first for guess in guesses])
    later = np.array([guess.later for guess in guesses])
    lengths = tokens[is_untold]
    place = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    guessed = np.repeat(first, lengths) * np.repeat(later, lengths) ** place
    is_guessed = np.repeat(is_untold, tokens)
    chances = np.empty(len(is_guessed))
    chances[is_guessed], chances[~is_guessed] = guessed, known
    return chances


def _told(offer: DraftOffer) -> Sequence[float]:
    if offer.reach:
        return offer.reach[: offer.tokens]
    share = accepted_tokens(*offer.forecast[:2], min(offer.depth, offer.tokens)) / max(1, offer.tokens)
    return [float(share)] * offer.tokens


def _likeliest(chances: Numbers, tokens: NDArray[np.int_], count: int, least: float) -> list[int]:
    """Of each draft its tokens among the `count` likeliest, the last of which has the chance `least`."""
    ends = tokens.cumsum()
    above, equal = _sums(chances > least, ends, tokens), _sums(chances == least, ends, tokens)
    left = np.maximum(0, count - above.sum() - (equal.cumsum() - equal))
    kept: list[int] = (above + np.minimum(equal, left)).tolist()
    return kept


def _sums(counted: NDArray[np.bool_], ends: NDArray[np.int_], tokens: NDArray[np.int_]) -> NDArray[np.int_]:
    """How many of each draft's tokens are counted; the drafts lie one behind the other."""
    until = np.concatenate(([0], counted.cumsum()))
    return until[ends] - until[ends - tokens]


def urgency(session: SessionView) -> float:
    """The smallest is served first. It stands still while a session waits, so every session has its turn."""
    since = due = session.ready_since
    if session.pace and session.due > since:
        due = session.due if session.due < since + CREDIT_S else since + CREDIT_S
    return due + BACKGROUND_S if session.background else due


def most_urgent(sessions: Sequence[SessionView], places: int) -> Sequence[SessionView]:
    """The `places` most urgent ones; all, in their order, if there are no more."""
    if len(sessions) <= places:
        return sessions
    return sorted(sessions, key=urgency)[:places]
