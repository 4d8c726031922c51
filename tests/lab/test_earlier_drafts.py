"""How long drafts are away: means, so that what a device drafts before the verdict comes is worth something."""

from collections.abc import Iterable
from random import Random

import pytest

from scheduler.estimates import DeviceEstimate
from tests.lab.one_near_user import tokens_per_s

DELAY_S, DRAFT_S, LENGTH = 0.01, 0.005, 4
AWAY_S = DELAY_S + LENGTH * DRAFT_S


def learned(times: Iterable[float]) -> DeviceEstimate:
    """Of a device whose drafts of LENGTH tokens were away for so long."""
    estimate = DeviceEstimate()
    for away_s in times:
        estimate.add_arrival(away_s, LENGTH, min(away_s, LENGTH * DRAFT_S))
    return estimate


def away(estimate: DeviceEstimate) -> float:
    return estimate.forecast(0.5, 0.5).away_s(LENGTH)


HIDDEN = [AWAY_S, AWAY_S, DELAY_S] * 60  # a third drafted while the verdict was on its way
MEAN_S = (2 * AWAY_S + DELAY_S) / 3


def test_times_are_means_that_count_drafts_made_beforehand():
    assert away(learned(HIDDEN)) == pytest.approx(MEAN_S, rel=0.02)
    noise = Random(1)
    assert away(learned(AWAY_S * noise.uniform(0.9, 1.1) for _ in range(200))) == pytest.approx(
        AWAY_S, rel=0.03
    )


def test_an_outage_counts_little_and_is_soon_forgotten():
    assert away(learned([*HIDDEN, 60.0])) < MEAN_S + 0.02
    assert away(learned([*HIDDEN, 60.0, *HIDDEN])) == pytest.approx(MEAN_S, rel=0.02)


def test_a_device_that_has_become_slow_is_soon_known():
    """Also one whose first draft was there at once, and one that is far away."""
    new = DeviceEstimate(tenant=DeviceEstimate())
    for away_s in [1e-4, *[0.5] * 20]:
        new.add_arrival(away_s, LENGTH, 0.0)
    assert away(new) == pytest.approx(0.5, rel=0.2)


def test_devices_of_a_tenant_are_assumed_to_be_alike_until_they_show_otherwise():
    mean = learned(HIDDEN)
    new = mean.another()
    assert away(new) == away(mean)
    for _ in range(30):
        new.add_arrival(2 * AWAY_S, LENGTH, LENGTH * DRAFT_S)
    assert away(new) == pytest.approx(2 * AWAY_S, rel=0.02)


@pytest.mark.parametrize("acceptance", [0.6, 0.8])
def test_the_default_policy_loses_nothing_where_looking_ahead_pays(acceptance):
    """One user near the server, whose device hides much of its drafting: with medians, 0.89 and 0.92 of `fcfs`."""
    goodput, fcfs = (tokens_per_s(policy, 5, acceptance, 4) for policy in ("goodput", "fcfs"))
    assert goodput >= 0.96 * fcfs
