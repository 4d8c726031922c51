"""Which draft tokens of a whole batch a step verifies, against trying every choice."""

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.estimates import Forecast
from scheduler.goodput.step_budget import most_valuable
from scheduler.plan import OfferView

SURE, DOUBTFUL = Forecast(0.9, 0.9), Forecast(0.3, 0.5)
Price = Callable[[np.ndarray], np.ndarray]


def offer(tokens: int, forecast: Forecast, reach: tuple[float, ...] = (), depth: int = 0) -> OfferView:
    return OfferView(tokens, forecast, reach=reach, depth=depth)


def each(price: float) -> Price:
    """Every row costs as much."""
    return lambda counts: price * counts


def bent(free: int, price: float) -> Price:
    """Rows beyond `free` cost `price` each."""
    return lambda counts: price * np.maximum(0, counts - free)


def chances(offer: OfferView) -> list[float]:
    """Of a chain, by the definition of its forecast."""
    steps = [offer.forecast.first, *[offer.forecast.later] * (offer.tokens - 1)][: offer.tokens]
    return list(offer.reach[: offer.tokens]) or list(accumulate(steps, mul))


def value(offers: Sequence[OfferView], kept: Sequence[int], price: Price) -> float:
    won = sum(sum(chances(offer)[:tokens]) for offer, tokens in zip(offers, kept))
    return won - float(price(np.array([sum(kept)]))[0])


def best_of_all(offers: Sequence[OfferView], room: int, price: Price) -> float:
    choices = product(*[range(offer.tokens + 1) for offer in offers])
    return max(value(offers, kept, price) for kept in choices if sum(kept) <= room)


REACH = some.lists(some.floats(0.01, 1.0), min_size=1, max_size=4).map(
    lambda steps: tuple(accumulate(steps, mul))
)
TOLD = REACH.map(lambda reach: offer(len(reach), DOUBTFUL, reach))
CHANCE = some.floats(0.01, 1.0)
UNTOLD = some.tuples(some.integers(0, 4), CHANCE, CHANCE).map(
    lambda drawn: offer(drawn[0], Forecast(*drawn[1:]))
)


@given(
    some.lists(TOLD | UNTOLD, min_size=1, max_size=4),
    some.integers(0, 12),
    some.builds(each, some.floats(0, 1)) | some.builds(bent, some.integers(0, 8), some.floats(0, 2)),
)
def test_no_other_choice_is_worth_more(offers, room, price):
    kept = most_valuable(offers, room, price)
    assert sum(kept) <= room
    assert all(0 <= tokens <= offer.tokens for offer, tokens in zip(offers, kept))
    assert value(offers, kept, price) == pytest.approx(best_of_all(offers, room, price))


@pytest.mark.parametrize(("price", "count"), [(0.95, 0), (0.89, 1), (0.49, 2), (0.01, 3)])
def test_tokens_above_a_price(price, count):
    assert most_valuable([offer(3, SURE, (0.9, 0.5, 0.1))], 16, each(price)) == [count]


def test_rows_go_to_the_likeliest_tokens_of_the_batch_and_not_to_each_session_alike():
    sure, doubtful = offer(6, SURE), offer(6, DOUBTFUL)
    assert most_valuable([doubtful, sure], 6, each(0.0)) == [0, 6]
    assert most_valuable([doubtful, sure], 8, each(0.0)) == [2, 6]
    assert most_valuable([sure, sure], 8, each(0.0)) == [4, 4]


def test_a_confident_token_passes_others_of_a_draft_that_is_as_good_on_the_whole():
    offers = [offer(2, SURE, (0.5, 0.4)), offer(2, SURE, (0.95, 0.9))]
    assert most_valuable(offers, 2, each(0.0)) == [0, 2]


def test_dear_rows_behind_cheap_ones_are_left():
    assert most_valuable([offer(8, SURE)], 16, bent(4, 2.0)) == [4]


def test_a_tree_pays_by_its_depth_for_all_its_tokens():
    tree = offer(14, Forecast(first=0.8, later=0.5), depth=3)  # expects 0.8 * (1 + 1/2 + 1/4) = 1.4
    assert most_valuable([tree], 32, each(0.099)) == [14]
    assert most_valuable([tree], 32, each(0.101)) == [0]
