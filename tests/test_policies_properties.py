"""Every policy keeps to its contract on snapshots of every kind, and lets nobody starve."""

import itertools
import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_profiles.step_cost import HardwareProfile
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.plan import BatchPlan, OfferView, SchedulingPolicy, Slice, Snapshot
from scheduler.static import Static
from tests.hypothesis_profiles import tried
from tests.policy_contract import BUDGETS, Promises, crowd, profiles, require_contract, snapshots, then
from tests.views import viewed

POLICIES: dict[str, tuple[SchedulingPolicy, Promises]] = {
    "goodput": (Goodput(0.25), Promises(trims=True, longest_wait=1.0)),
    "fcfs": (Fcfs(0.25), Promises(longest_wait=0.25)),
    "fcfs, patient": (Fcfs(inf), Promises(for_ever=True)),
    "fcfs, impatient": (Fcfs(0.0), Promises(longest_wait=0.0)),
    "static": (Static(0.25), Promises(longest_wait=0.25)),
    "static, by three": (Static(0.25, 3), Promises(longest_wait=0.25)),
}
ANY = HardwareProfile()
PROMPT = viewed(1, 5, server_drives=True)
every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
@tried(100)
@given(situation=snapshots(1) | snapshots(8), profile=profiles())
def test_plans_are_valid(name: str, situation: tuple[Snapshot, float], profile: HardwareProfile) -> None:
    policy, promises = POLICIES[name]
    snapshot, now = situation
    plan = require_contract(policy, snapshot, profile, now, promises)
    require_contract(policy, then(snapshot, plan), profile, now, promises)


@every_policy
@pytest.mark.parametrize("seed", range(3))
def test_plans_for_many_sessions_are_valid(name: str, seed: int) -> None:
    policy, promises = POLICIES[name]
    for budget in BUDGETS:
        require_contract(policy, crowd(seed), HardwareProfile(budget), 12345.678, promises)


@every_policy
@tried(25)
@given(profile=profiles(), seeds=st.lists(st.integers(0, 2**32), min_size=2, max_size=6))
def test_plans_stay_valid_whoever_comes_and_goes(
    name: str, profile: HardwareProfile, seeds: list[int]
) -> None:
    """What a policy remembers of one set of sessions may not mislead it about another."""
    policy, promises = POLICIES[name]
    memory: object = None
    for now, seed in enumerate(seeds):
        present = random.Random(seed)
        views = tuple(view for view in crowd(seed, 12, float(now)).sessions if present.random() < 0.7)
        plan = require_contract(policy, Snapshot(views, memory), profile, float(now), promises)
        memory = plan.memory


class Says:
    """Answers with these plans in turn."""

    def __init__(self, *plans: BatchPlan) -> None:
        self._plans = itertools.cycle(plans)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        return next(self._plans)


def test_the_contract_notices_what_is_wrong() -> None:
    """Each of these plans breaks one rule of it."""
    views = (
        PROMPT,
        replace(PROMPT, id=2, absent=True),
        replace(PROMPT, id=3, paused=True),
        replace(PROMPT, id=4, device=OfferView(2)),
    )
    wrong = {
        "sleeps": BatchPlan(),
        "wake_at": BatchPlan((), 1.0),
        "twice": BatchPlan((Slice(1, 5, True), Slice(1, 5, True))),
        "nobody reads": BatchPlan((Slice(2, 5, True),)),
        "unasked": BatchPlan((Slice(3, 5, True),)),
        "decides just when": BatchPlan((Slice(1, 4, True),)),
        "uncomputed": BatchPlan((Slice(1, 6, True),)),
        "padding": BatchPlan((Slice(1, 5, True, padding=-1),)),
        "draft": BatchPlan((Slice(1, 5, True, draft=1),)),
        "hint": BatchPlan((Slice(1, 5, True, hint=17),)),
        "verifies nothing": BatchPlan((Slice(4, 4, False, draft=1),)),
        "positions in a step": BatchPlan((Slice(1, 5, True, padding=6),)),
    }
    for words, plan in wrong.items():
        with pytest.raises(AssertionError, match=words):
            require_contract(Says(plan), Snapshot(views), HardwareProfile(10), 2.0, Promises())
    with pytest.raises(AssertionError, match="another plan"):
        require_contract(
            Says(BatchPlan((Slice(1, 5, True),)), BatchPlan()), Snapshot(views), ANY, 2.0, Promises()
        )
