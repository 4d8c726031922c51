"""The law of draft length, and the estimates it rests on."""

from __future__ import annotations

import itertools
import random
from collections import deque

import pytest

from edge_client.lengths.adaptive import HITS, PACES, TRIED
from edge_client.lengths.draft_law import DraftLaw
from edge_client.lengths.observed import ROUNDS, STREAM, Acceptance, RoundTimes, server_rate, streamed
from hw_profiles.fading import FadingRatio, mean_but_largest


def law(chance=0.8, **options):
    return DraftLaw(
        **{
            "chances": (chance,) * 17, "base_s": 0.06, "slope_s": 0.001, "token_s": 0.01, "away_s": 0.06,
            "top": 16, **options,
        }
    )  # fmt: skip


def test_the_expected_tokens_are_a_geometric_sum():
    expected = law(0.8).expected
    assert expected[0] == 1
    assert expected[3] == pytest.approx(1 + 0.8 + 0.64 + 0.512)


def test_without_look_ahead_the_best_length_is_the_one_of_the_largest_quotient():
    for chance, token_s in itertools.product((0.4, 0.7, 0.9), (0.001, 0.01, 0.05)):
        one = law(chance, token_s=token_s, looks_ahead=False)
        rates = [one.expected[k] / (0.06 + 0.001 * k + token_s * k) for k in range(1, 17)]
        assert one.cold == 1 + rates.index(max(rates))
        assert one.rate == pytest.approx(max(rates))


def test_no_other_pair_of_lengths_is_better():
    for chance, token_s, factor in itertools.product((0.5, 0.8, 0.95), (0.004, 0.02), (0.5, 1.2)):
        one = law(chance, token_s=token_s, hits_per_forecast=factor)
        rates = [one.value(cold, warm)[0] for cold in range(1, 17) for warm in range(1, 17)]
        assert one.rate == pytest.approx(max(rates), rel=1e-6)


def test_look_ahead_is_worth_its_hits():
    rates = [law(hits_per_forecast=factor).rate for factor in (0.0, 1.0, 1.5)]
    assert rates == sorted(rates) and rates[0] < rates[1] < rates[2]
    assert rates[0] == pytest.approx(law(looks_ahead=False).rate)


def test_tokens_at_hand_are_sent_and_never_make_a_block_shorter():
    one = law()
    lengths = [one.length(ready) for ready in range(10)]
    assert lengths == sorted(lengths)
    assert lengths[5] >= 5


def test_look_ahead_drafts_what_a_round_has_time_for():
    assert law(token_s=0.01, hit_rate=0.2).ahead == 5  # six passes, one of them for the bonus token
    assert law(token_s=0.0109, hit_rate=0.2).ahead == 4
    assert (
        law(token_s=0.0109, hit_rate=0.6).ahead == 5
    )  # a pass under way when the verdict comes pays by then
    assert law(token_s=0.07, hit_rate=0.2).ahead == 0
    assert law(looks_ahead=False).ahead == 0


def test_acceptance_is_learned_by_position():
    chance, seen = random.Random(1), Acceptance()
    truth = (0.5, 0.9, 0.9, 0.9)
    for _ in range(600):
        accepted = next((index for index, each in enumerate(truth) if chance.random() >= each), 4)
        seen.judged(4, accepted)
    found = seen.chances(6)
    assert found[0] == pytest.approx(0.5, abs=0.1)
    assert found[1:] == pytest.approx([0.9] * 5, abs=0.1)


def test_round_times_learn_what_a_token_costs_and_what_hides():
    chance, times = random.Random(1), RoundTimes()
    for _ in range(300):
        length = chance.randrange(1, 9)
        drafting_s = chance.uniform(0, 0.04)
        seconds = 0.08 + 0.004 * length - 0.5 * drafting_s + chance.gauss(0, 0.004)
        times.took(seconds, length, drafting_s, round(drafting_s / 0.01))
    assert times.slope_s == pytest.approx(0.004, rel=0.2)
    assert times.hidden == pytest.approx(0.5, rel=0.2)
    assert times.base_s == pytest.approx(0.08, rel=0.1)


def test_a_steps_stairs_show_as_deviations():
    times = RoundTimes()
    for turn in range(200):
        fresh = turn % 4
        times.took(0.1 + 0.03 * (fresh == 3), 4, 0.01 * fresh, fresh)
    deviations = times.deviations()
    assert deviations[3] > 0.005 > deviations[2]


def test_an_outage_is_no_measure_of_the_next_round():
    times, speed = RoundTimes(), FadingRatio(STREAM)
    for _ in range(20):
        times.took(0.1, 4, 0.02, 2)
        streamed(speed, 1, 0.05)
    times.took(60.0, 4, 0.02, 2)
    streamed(speed, 1, 60.0)
    assert times.mean_s < 0.2
    assert server_rate(speed) > 15


def test_the_speed_of_a_device_is_followed_within_some_tokens():
    paces = deque(maxlen=PACES)
    assert mean_but_largest(paces) is None
    paces.extend([0.01] * 9 + [1.0])
    assert mean_but_largest(paces) == pytest.approx(0.01)
    paces.extend([0.02] * 9)
    assert mean_but_largest(paces) == pytest.approx(0.02)


def test_hits_that_come_more_often_than_predicted_count_for_more():
    per_forecast, rate = FadingRatio(ROUNDS, HITS, HITS), FadingRatio(ROUNDS, HITS, TRIED)
    for turn in range(200):
        per_forecast.add(0, 0.3)
        rate.add(0, 1)
        if turn % 2:
            per_forecast.add(1, 0, age=0)
            rate.add(1, 0, age=0)
    assert per_forecast.ratio == pytest.approx(0.5 / 0.3, rel=0.05)
    assert rate.ratio == pytest.approx(0.5, abs=0.02)
