"""The formulas of a round against sums and simulations of their own, and averages that forget."""

import random
from statistics import fmean, median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_profiles.fading import FadingRatio, RunningMedian, remaining_share
from hw_profiles.speculation import accepted_tokens, reach

FIRST = np.array([0.4, 0.65, 0.9, 0.7, 0.5])
LATER = np.array([0.3, 0.75, 0.95, 1.0, 0.0])


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 0.95])
def test_the_tokens_of_a_round_are_the_geometric_sum_of_the_paper(acceptance):
    for length in range(12):
        expected = (1 - acceptance ** (length + 1)) / (1 - acceptance)
        assert 1 + reach([acceptance] * length)[1:].sum() == pytest.approx(expected)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 8])
def test_accepted_tokens_are_the_sum_of_the_reaches(length):
    found = accepted_tokens(FIRST, LATER, length)
    for first, later, accepted in zip(FIRST.tolist(), LATER.tolist(), found.tolist()):
        assert accepted == pytest.approx(reach([first, *[later] * (length - 1)][:length])[1:].sum())
        assert accepted_tokens(first, later, length) == pytest.approx(accepted)


def test_a_simulated_round_commits_as_many_tokens_as_expected():
    draw, first, later, length = random.Random(1), 0.6, 0.8, 5

    def accepted() -> int:
        chances = [first, *[later] * (length - 1)]
        return next((index for index, chance in enumerate(chances) if draw.random() >= chance), length)

    mean = fmean(accepted() for _ in range(40_000))
    assert mean == pytest.approx(float(accepted_tokens(first, later, length)), abs=0.04)


def test_a_half_life_forgets_half():
    assert remaining_share(48.0, 48.0) == 0.5
    assert remaining_share(0.0, 48.0) == 1.0
    ratio = FadingRatio(half_life=10.0)
    assert ratio.ratio == 0
    ratio.add(10.0, 1.0)
    ratio.add(20.0, 1.0, age=10.0)
    assert ratio.ratio == pytest.approx((0.5 * 10 + 20) / 1.5)
    assert ratio.seen == 11


@given(st.integers(1, 9), st.lists(st.integers(-3, 3) | st.floats(-1e9, 1e9), max_size=60))
def test_a_running_median_is_the_low_median_of_the_window(window, values):
    running = RunningMedian(window)
    for count, value in enumerate(values, 1):
        assert running.add(value) == median_low(values[max(0, count - window) : count])
