"""The law of draft length, and the estimates it rests on."""

from __future__ import annotations

import itertools
import random

import pytest

from edge_client.lengths.draft_law import DraftLaw
from edge_client.lengths.observed import Acceptance, DraftPace, LookAheadHits, RoundTimes, Streamed


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
        assert one.best().cold == 1 + rates.index(max(rates))
        assert one.best().rate == pytest.approx(max(rates))


def test_no_other_pair_of_lengths_is_better():
    for chance, token_s, luck in itertools.product((0.5, 0.8, 0.95), (0.004, 0.02), (0.5, 1.2)):
        one = law(chance, token_s=token_s, luck=luck)
        rates = [one._value(cold, warm).rate for cold in range(1, 17) for warm in range(1, 17)]
        assert one.best().rate == pytest.approx(max(rates), rel=1e-6)


def test_bets_are_worth_what_they_are_won():
    rates = [law(luck=luck).best().rate for luck in (0.0, 1.0, 1.5)]
    assert rates == sorted(rates) and rates[0] < rates[1] < rates[2]
    assert rates[0] == pytest.approx(law(looks_ahead=False).best().rate)


def test_tokens_at_hand_are_sent_and_never_make_a_block_shorter():
    one = law()
    best = one.best()
    lengths = [one.length(ready, best) for ready in range(10)]
    assert lengths == sorted(lengths)
    assert lengths[5] >= 5


def test_look_ahead_drafts_what_a_round_has_time_for():
    assert law(token_s=0.01, bet=0.2).ahead == 5  # six passes, one of them for the bonus token
    assert law(token_s=0.0109, bet=0.2).ahead == 4
    assert law(token_s=0.0109, bet=0.6).ahead == 5  # a pass under way when the verdict comes pays by then
    assert law(token_s=0.07, bet=0.2).ahead == 0
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
    times, stream = RoundTimes(), Streamed()
    for _ in range(20):
        times.took(0.1, 4, 0.02, 2)
        stream.took(1, 0.05)
    times.took(60.0, 4, 0.02, 2)
    stream.took(1, 60.0)
    assert times.mean_s < 0.2
    assert stream.rate > 15


def test_the_speed_of_a_device_is_followed_within_some_tokens():
    speed = DraftPace()
    assert speed.token_s is None
    for seconds in [0.01] * 9 + [1.0]:
        speed.took(seconds)
    assert speed.token_s == pytest.approx(0.01)
    for _ in range(9):
        speed.took(0.02)
    assert speed.token_s == pytest.approx(0.02)


def test_bets_that_are_won_more_often_than_foretold_count_for_more():
    bets = LookAheadHits()
    for turn in range(200):
        bets.placed(0.3)
        if turn % 2:
            bets.won()
    assert bets.luck == pytest.approx(0.5 / 0.3, rel=0.05)
    assert bets.share == pytest.approx(0.5, abs=0.02)
