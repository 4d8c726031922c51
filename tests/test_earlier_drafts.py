"""What a device drafts before the verdict comes: seen in its mean times, and worth something to policy `goodput`.

Run: pytest tests/test_earlier_drafts.py
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from scheduler.estimates import DeviceEstimate
from tests.one_near_user import tokens_per_s
from tests.test_goodput_rules import GOOD, drafting, hints, plan

DELAY_S, DRAFT_S, LENGTH = 0.01, 0.005, 4
AWAY_S = DELAY_S + LENGTH * DRAFT_S


def learned(times: Iterable[float]) -> DeviceEstimate:
    """Of a device whose drafts of LENGTH tokens were away for so long."""
    estimate = DeviceEstimate()
    for away_s in times:
        estimate.arrived(away_s, LENGTH, min(away_s, LENGTH * DRAFT_S))
    return estimate


def earlier(times: Iterable[float]) -> float:
    return learned(times).forecast(0.5, 0.5).earlier


def test_a_third_of_the_drafts_without_drafting() -> None:
    """Drafted while the verdict was on its way: the link's delay is all that is left of it."""
    assert earlier([AWAY_S, AWAY_S, DELAY_S] * 60) == pytest.approx((1 - DELAY_S / AWAY_S) / 3, abs=0.04)


def test_nothing_is_hidden_in_noise_or_behind_outages() -> None:
    noise = Random(1)
    assert earlier(AWAY_S * noise.uniform(0.9, 1.1) for _ in range(200)) == pytest.approx(0, abs=0.03)
    assert earlier(10.0 if turn % 5 == 0 else AWAY_S for turn in range(200)) == 0


def test_an_outage_is_soon_forgotten() -> None:
    hidden = [AWAY_S, AWAY_S, DELAY_S]
    assert earlier([*hidden * 60, 60.0, *hidden * 10]) > 0.1


def test_devices_of_a_tenant_are_assumed_to_look_ahead_alike() -> None:
    mean = learned([AWAY_S, AWAY_S, DELAY_S] * 60)
    assert mean.another().forecast(0.5, 0.5).earlier == mean.forecast(0.5, 0.5).earlier > 0.1


def test_what_a_tenants_devices_show_is_soon_corrected() -> None:
    new = learned([AWAY_S, AWAY_S, DELAY_S] * 60).another()
    for _ in range(30):
        new.arrived(AWAY_S, LENGTH, LENGTH * DRAFT_S)
    assert new.forecast(0.5, 0.5).earlier < 0.02


def test_who_looks_ahead_drafts_where_others_would_not() -> None:
    slow = GOOD._replace(first=0.6, later=0.6, draft_s=0.02)
    profile = HardwareProfile(256, Roofline(read_s=0.03, token_s=1e-6))
    told = [
        hints(plan(drafting(draft=4, forecast=slow._replace(earlier=share)), profile=profile))[1]
        for share in (0.0, 0.7)
    ]
    assert told[0] == 0 and told[1]


@pytest.mark.parametrize("acceptance", [0.6, 0.8])
def test_the_default_policy_loses_nothing_where_looking_ahead_pays(acceptance: float) -> None:
    """One user near the server, whose device hides much of its drafting: 0.89 and 0.92 of `fcfs` without `earlier`."""
    goodput, fcfs = (tokens_per_s(policy, 5, acceptance, 4) for policy in ("goodput", "fcfs"))
    assert goodput >= 0.96 * fcfs
