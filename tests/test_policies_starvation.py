"""Policy `goodput` lets nobody starve, and a bad device costs its user nothing: server and devices moved by hand."""

import random
from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_profiles.step_cost import HardwareProfile, Roofline, StepCost
from scheduler import make_policy
from scheduler.fcfs import Fcfs
from scheduler.goodput.step_budget import BACKGROUND_S
from scheduler.plan import PolicyOptions, SchedulingPolicy
from tests.hypothesis_profiles import tried
from tests.policy_world import Habits, User, World

WAIT = 0.25  # seconds, for a device of which nothing is known
GOODPUT = make_policy("goodput", PolicyOptions(WAIT))
CPU = Roofline()
MEMORY_BOUND = Roofline(read_s=0.03, token_s=1e-5)
COMPUTE_BOUND = Roofline(read_s=1e-3, token_s=2e-3)
COSTS = (CPU, MEMORY_BOUND, COMPUTE_BOUND)
TOKENS = 40

GOOD = Habits()
NONE = Habits(length=0)
# Devices that are of no use to their users.
BAD = {
    "silent from the first": Habits(length=4, silent_after=0),
    "silent after a while": Habits(right=1.0, silent_after=6),
    "late and then silent": Habits(right=1.0, silent_after=6, stall_s=6.0),
    "hopeless": Habits(right=0.0, length=8),
    "hopeless and rude": Habits(right=0.0, length=16, rude=True),
    "slow": Habits(draft_s=0.8),
    "far away": Habits(link_s=1.5, length=16),
    "slow and rude": Habits(draft_s=0.5, rude=True),
}


def turn_s(world: World) -> float:
    """Seconds in which everybody could be served once: all prompts in a quarter of each step, a token for each of the
    others in the rest; a policy that verifies drafts may not need longer, for it can do without."""
    most, users = world.profile.max_step_tokens, len(world.users)
    prompts = sum(user.truth.prompt_length for user in world.users)
    steps = ceil(prompts / max(1, most // 4)) + ceil(users / max(1, most * 3 // 4))
    contexts = sum(len(user.script) for user in world.users)
    return steps * world.profile.cost.verify_s(min(most, prompts + 17 * users), contexts, users)


def require_nobody_starved(world: World) -> None:
    """Between two tokens of anybody who is there passes one wait at most, and two turns of all others."""
    for user in world.users:
        assert user.truth.tokens == user.script
        bound = WAIT + 2 * turn_s(world) + BACKGROUND_S * user.session.terms.background
        gap = world.longest[user.session.id]
        assert gap <= bound, f"{gap:.2f} s without a token, {bound:.2f} s at most"


def habits_of(choose) -> Habits:
    return Habits(
        link_s=choose((1e-4, 0.01, 0.1, 2.0)),
        draft_s=choose((1e-4, 0.01, 0.3)),
        length=choose((0, 1, 4, 16)),
        right=choose((0.0, 0.3, 0.7, 0.95, 1.0)),
        silent_after=choose((inf, inf, inf, 0, 2)),
        rude=choose((False, False, True)),
        leaves_after=choose((inf, inf, inf, 5)),
    )


def any_world(policy: SchedulingPolicy, seed: int, budget: int, cost: StepCost) -> World:
    """Up to thirty users of every kind, who come within two seconds."""
    world, chance = World(policy, HardwareProfile(budget, cost), seed), random.Random(seed)
    for _ in range(chance.randint(1, 30)):
        world.join(
            habits_of(chance.choice),
            tokens=chance.randint(1, TOKENS),
            prompt=chance.choice((1, 4, 120)),
            at=chance.choice((0.0, 2 * chance.random())),
            pace=chance.choice((0.0, 0.0, 5.0, 50.0, 1e6)),
            background=chance.random() < 0.3,
        )
    return world


@tried(12)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from((1, 2, 8, 64, 512)), cost=st.sampled_from(COSTS))
def test_nobody_starves_whatever_the_devices_do(seed: int, budget: int, cost: StepCost) -> None:
    world = any_world(GOODPUT, seed, budget, cost)
    world.run()
    require_nobody_starved(world)


def crowded(policy: SchedulingPolicy, habits: Habits = NONE) -> World:
    """Five times as many users as a step has tokens, and one who comes later with a long prompt."""
    world = World(policy, HardwareProfile(max_step_tokens=16))
    for number in range(80):
        world.join(habits, 5 * TOKENS, background=number % 4 == 0)
    world.join(habits, TOKENS, prompt=100, at=0.1)
    return world


@pytest.mark.parametrize(
    "habits", [NONE, pytest.param(GOOD, marks=pytest.mark.long)], ids=["decoding", "drafting"]
)
def test_more_sessions_than_tokens_in_a_step_take_turns(habits: Habits) -> None:
    world = crowded(GOODPUT, habits)
    world.run()
    require_nobody_starved(world)


def test_the_crowd_is_one_that_starves_under_first_come_first_served() -> None:
    """Else the tests above could not fail."""
    world = crowded(Fcfs(WAIT))
    world.run()
    with pytest.raises(AssertionError, match="without a token"):
        require_nobody_starved(world)


# -- what a bad device costs its user ---------------------------------------------------------------------------


def beside_others(
    habits: Habits, cost: StepCost, others: int = 6, tokens: int = TOKENS
) -> tuple[World, User]:
    """One user among others whose devices draft well."""
    world = World(GOODPUT, HardwareProfile(256, cost), seed=5)
    for _ in range(others):
        world.join(GOOD, 3 * tokens)
    user = world.join(habits, tokens, at=0.05)
    world.run()
    return world, user


@pytest.mark.parametrize("cost", COSTS, ids=["cpu", "memory", "compute"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_device_costs_its_user_one_wait_at_most(kind: str, cost: StepCost) -> None:
    _, user = beside_others(BAD[kind], cost)
    _, plain = beside_others(NONE, cost)
    assert user.seconds <= 1.15 * plain.seconds + 2 * WAIT


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_device_costs_its_user_nothing_in_the_long_run(kind: str) -> None:
    """What is lost is lost once, not once for each token."""
    _, user = beside_others(BAD[kind], CPU, tokens=3 * TOKENS)
    _, plain = beside_others(NONE, CPU, tokens=3 * TOKENS)
    assert user.seconds <= 1.15 * plain.seconds + 2 * WAIT


@pytest.mark.parametrize("kind", ["silent after a while", "late and then silent"])
def test_a_device_that_was_worth_waiting_for_is_waited_for_once(kind: str) -> None:
    world, user = beside_others(BAD[kind], MEMORY_BOUND, others=0, tokens=3 * TOKENS)
    assert user.counter == BAD[kind].silent_after, "it never fell silent"
    assert world.longest[user.session.id] < 2 * WAIT


@pytest.mark.parametrize("kind", BAD)
def test_bad_devices_cost_the_others_little(kind: str) -> None:
    def slowest(habits: Habits) -> float:
        world = World(GOODPUT, HardwareProfile(256, MEMORY_BOUND), seed=5)
        users = [world.join(GOOD, TOKENS) for _ in range(6)]
        for _ in range(6):
            world.join(replace(habits), TOKENS)
        world.run()
        return max(user.seconds for user in users)

    assert slowest(BAD[kind]) <= 1.2 * slowest(NONE) + WAIT


def test_good_devices_are_worth_having() -> None:
    """Else a policy that has nobody draft would pass all of the above. A step of 31 ms writes one token, and a round
    of about 90 ms four and a half."""

    def seconds(habits: Habits) -> float:
        world = World(GOODPUT, HardwareProfile(256, MEMORY_BOUND), seed=5)
        for _ in range(6):
            world.join(habits, 8 * TOKENS)
        world.run()
        return world.now

    assert seconds(Habits(right=0.95)) < 0.8 * seconds(NONE)


def test_interactive_sessions_go_before_background_ones() -> None:
    world = World(GOODPUT, HardwareProfile(8, COMPUTE_BOUND))
    users = [world.join(NONE, TOKENS, background=number % 2 == 0) for number in range(24)]
    world.run()
    background = [user.seconds for user in users if user.session.terms.background]
    assert max([user.seconds for user in users if not user.session.terms.background]) < min(background)
    require_nobody_starved(world)
