"""The figures of lab/benchmarks/cold_start.py; the measurement needs a real model."""

from __future__ import annotations

from lab.benchmarks.cold_start import best_fixed, ratio_of_all


def test_the_best_fixed_length_takes_the_least_time_for_all_answers() -> None:
    speeds = {
        "chat, hint": [9.0, 9.0],
        "chat, k = 1": [5.0, 5.0],
        "chat, k = 4": [30.0, 2.0],
        "code, k = 1": [99.0, 99.0],
    }
    assert best_fixed(speeds, "chat") == "chat, k = 1"


def test_a_ratio_is_that_of_the_times_of_all_answers() -> None:
    assert ratio_of_all([2.0, 4.0], [4.0, 4.0])["ratio"] == round((1 / 4 + 1 / 4) / (1 / 2 + 1 / 4), 3)
    found = ratio_of_all([2.0] * 10, [4.0] * 10)
    assert found == {"ratio": 0.5, "low": 0.5, "high": 0.5}
