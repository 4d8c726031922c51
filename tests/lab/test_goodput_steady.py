"""Policy `goodput` under a steady load: while nothing changes, hints stand still."""

import random
from collections.abc import Sequence

import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from lab.testbed.baselines import opensled
from lab.testbed.cells import REGIMES
from lab.testbed.fleet import Fleet, Group
from lab.testbed.load.load import Load
from lab.testbed.simulator import simulate_users
from scheduler.estimates import Forecast
from scheduler.goodput.policy import Goodput
from scheduler.goodput.state import GoodputState, current
from scheduler.plan import BatchPlan, SessionView, Snapshot
from tests.lab.made_traces import made
from tests.views import viewed

REVIEW_S = 1.0  # between two plans, so that each is a review
SETTLED, REVIEWS = 10, 20  # reviews after which hints stand, and for which they do
BUSY = Roofline(read_s=0.02, token_s=2e-4)  # some dozens of positions cost as much as reading the weights


def devices(seed: int) -> list[SessionView]:
    """Sessions of one to three kinds of devices, and no two of them quite alike."""
    chance = random.Random(seed)
    kinds = [
        Forecast(
            chance.uniform(0.3, 0.95),
            chance.uniform(0.4, 0.95),
            chance.choice((0.005, 0.02, 0.06, 0.15)),
            chance.choice((0.003, 0.01, 0.025)),
            0.01,
            50,
        )
        for _ in range(chance.randint(1, 3))
    ]
    pace = chance.choice((0.0, 8.0))
    return [
        viewed(number, hint=4, pace=pace, context=chance.randint(200, 2000), forecast=chance.choice(kinds))
        for number in range(1, chance.choice((4, 8, 16, 32)) + 1)
    ]


def reviewed(sessions: Sequence[SessionView], reviews: int) -> list[dict[int, int]]:
    """The hints after each review, those of probes left out."""
    hints, memory = [], None
    for number in range(reviews):
        memory = current(memory, sessions, HardwareProfile(512, BUSY), number * REVIEW_S)
        hints.append(dict(memory.hints))
    return hints


@pytest.mark.parametrize("seed", [71, 85, 263, *range(12)])
def test_with_the_same_estimates_hints_stand_still(seed):
    """With the first three seeds devices were told one length and another in turn, for ever."""
    hints = reviewed(devices(seed), SETTLED + REVIEWS)[SETTLED:]
    assert all(each == hints[0] for each in hints)


class Watched:
    """Policy `goodput`, and how often the hint of a session changes from review to review."""

    def __init__(self) -> None:
        self._inner, self._last = Goodput(0.25), 0.0
        self.changes, self.session_s = 0, 0.0

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        plan = self._inner.plan(snapshot, profile, now)
        before, after = snapshot.memory, plan.memory
        if isinstance(before, GoodputState) and isinstance(after, GoodputState) and now > WARM_UP:
            self.session_s += (now - self._last) * len(snapshot.sessions)
            self.changes += sum(before.hints.get(id, hint) != hint for id, hint in after.hints.items())
        self._last = now
        return plan


WARM_UP = 5.0  # seconds


@pytest.mark.parametrize(
    ("regime", "kinds", "most"),
    [
        pytest.param("moe", [("orin-nano-super", "wifi-good")], 40, marks=pytest.mark.long),
        ("dense-8k", [("orin-nano-super", "wifi-good"), ("orin-nx", "ethernet"), ("agx-orin", "wifi-busy")], 60),
    ],
)  # fmt: skip
def test_under_a_steady_load_hints_change_seldom(regime, kinds, most):
    """Sixty users who always read; estimates vary with luck, and some changes of hints come from that.

    A session's hint changed 149 and 125 times a minute while every response was followed, and 12 and 27 times since.
    """
    groups = tuple(Group(60 // len(kinds), *kind) for kind in kinds)
    policy, load = Watched(), Load(warmup=WARM_UP, duration=12.0)
    fleet = opensled(Fleet(REGIMES[regime], groups))
    traces = made(items=40, acceptance=0.7, seed=1, tokens=400)
    simulate_users(fleet, traces, load, range(fleet.users), policy=policy)
    assert policy.changes / (policy.session_s / 60) < most
