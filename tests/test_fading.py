"""Averages that forget, against the standard library over the same window."""

from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from hw_profiles.fading import RunningMedian


@given(st.integers(1, 9), st.lists(st.integers(-3, 3) | st.floats(-1e9, 1e9), max_size=60))
def test_a_running_median_is_the_low_median_of_the_window(window, values):
    running = RunningMedian(window)
    for count, value in enumerate(values, 1):
        assert running.add(value) == median_low(values[max(0, count - window) : count])
