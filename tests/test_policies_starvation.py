"""Every policy keeps to its contract and lets nobody starve; bad devices and liars cost their user alone."""

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.drafters.cacheback import CachebackFactory
from edge_client.lengths.fixed import FixedLength
from hw_profiles.step_cost import HardwareProfile, Roofline, StepCost
from lab.testbed.soak.liar import SURE, Liar
from scheduler import POLICIES as REGISTRY
from scheduler import make_policy
from scheduler.confidences import ConfidenceCalibration
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.goodput.step_budget import BACKGROUND_S, CREDIT_S
from scheduler.plan import BatchPlan, OfferView, PolicyOptions, SchedulingPolicy, Slice, Snapshot
from scheduler.static import Static
from tests.gated_target import SlowEngine
from tests.hypothesis_profiles import tried
from tests.policy_contract import BUDGETS, Promises, Watched, crowd, profiles, require_contract, snapshots
from tests.policy_world import Habits, User, World
from tests.system import ask, running
from tests.views import viewed

WAIT = 0.25  # seconds, for a device of which nothing is known
GOODPUT = make_policy("goodput", PolicyOptions(WAIT))
CPU = Roofline()
MEMORY_BOUND = Roofline(read_s=0.03, token_s=1e-5)
COMPUTE_BOUND = Roofline(read_s=1e-3, token_s=2e-3)
COSTS = (CPU, MEMORY_BOUND, COMPUTE_BOUND)
TOKENS = 40

# Of every registered policy, in seconds of the clock; with other options, some of them once more.
PROMISES = {
    "goodput": Promises(trims=True, gives_way_s=BACKGROUND_S + CREDIT_S),
    "fcfs": Promises(longest_wait=WAIT),
    "static": Promises(longest_wait=WAIT, gives_way_s=WAIT),
}
POLICIES: dict[str, tuple[SchedulingPolicy, Promises]] = {
    **{name: (make_policy(name, PolicyOptions(WAIT)), PROMISES[name]) for name in REGISTRY.names()},
    "fcfs, patient": (Fcfs(inf), Promises(longest_wait=inf)),
    "fcfs, impatient": (Fcfs(0.0), Promises(longest_wait=0.0)),
    "static, by three": (Static(WAIT, 3), PROMISES["static"]),
}

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


@pytest.mark.parametrize(
    "name", [name for name, (_, promises) in POLICIES.items() if promises.longest_wait < inf]
)
@tried(6)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from((1, 2, 8, 64, 512)), cost=st.sampled_from(COSTS))
def test_nobody_starves_whatever_the_devices_do(name, seed, budget, cost):
    world = any_world(Watched(*POLICIES[name]), seed, budget, cost)
    world.run()
    if name == "goodput":
        require_nobody_starved(world)


class FirstThree:
    """Serves only the first three sessions there are."""

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        return Fcfs(WAIT).plan(replace(snapshot, sessions=snapshot.sessions[:3]), profile, now)


def test_a_policy_under_which_somebody_starves_is_noticed():
    for policy, words in ((FirstThree(), "without"), (Watched(FirstThree(), Promises()), "starve")):
        world = World(policy, HardwareProfile(max_step_tokens=16))
        for _ in range(5):
            world.join(NONE, 5 * TOKENS)
        with pytest.raises(AssertionError, match=words):
            world.run()
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


@pytest.mark.parametrize(
    ("cost", "tokens"),
    [*[(cost, TOKENS) for cost in COSTS], (CPU, 3 * TOKENS)],
    ids=["cpu", "memory", "compute", "long"],
)
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_device_costs_its_user_one_wait_at_most(kind, cost, tokens):
    """What is lost is lost once, not once for each token."""
    _, user = beside_others(BAD[kind], cost, tokens=tokens)
    _, plain = beside_others(NONE, cost, tokens=tokens)
    assert user.seconds <= 1.15 * plain.seconds + 2 * WAIT


@pytest.mark.parametrize("kind", ["silent after a while", "late and then silent"])
def test_a_device_that_was_worth_waiting_for_is_waited_for_once(kind):
    world, user = beside_others(BAD[kind], MEMORY_BOUND, others=0, tokens=3 * TOKENS)
    assert user.counter == BAD[kind].silent_after, "it never fell silent"
    assert world.longest[user.session.id] < 2 * WAIT


@pytest.mark.parametrize("kind", BAD)
def test_bad_devices_cost_the_others_little(kind):
    def slowest(habits: Habits) -> float:
        world = World(GOODPUT, HardwareProfile(256, MEMORY_BOUND), seed=5)
        users = [world.join(GOOD, TOKENS) for _ in range(6)]
        for _ in range(6):
            world.join(replace(habits), TOKENS)
        world.run()
        return max(user.seconds for user in users)

    assert slowest(BAD[kind]) <= 1.2 * slowest(NONE) + WAIT


def test_good_devices_are_worth_having():
    """Else a policy that has nobody draft would pass all of the above. A step of 31 ms writes one token, and a round
    of about 90 ms four and a half."""

    def seconds(habits: Habits) -> float:
        world = World(GOODPUT, HardwareProfile(256, MEMORY_BOUND), seed=5)
        for _ in range(6):
            world.join(habits, 8 * TOKENS)
        world.run()
        return world.now

    assert seconds(Habits(right=0.95)) < 0.8 * seconds(NONE)


def test_interactive_sessions_go_before_background_ones():
    world = World(GOODPUT, HardwareProfile(8, COMPUTE_BOUND))
    users = [world.join(NONE, TOKENS, background=number % 2 == 0) for number in range(24)]
    world.run()
    background = [user.seconds for user in users if user.session.terms.background]
    assert max([user.seconds for user in users if not user.session.terms.background]) < min(background)
    require_nobody_starved(world)


# -- on snapshots of every kind ---------------------------------------------------------------------------------


ANY = HardwareProfile()
PROMPT = viewed(1, 5, server_drives=True)
every_policy = pytest.mark.parametrize("name", POLICIES)


@every_policy
@tried(100)
@given(situation=snapshots(1) | snapshots(8), profile=profiles())
def test_plans_are_valid(name, situation, profile):
    policy, promises = POLICIES[name]
    snapshot, now = situation
    plan = require_contract(policy, snapshot, profile, now, promises)
    require_contract(policy, replace(snapshot, memory=plan.memory), profile, now, promises)


@every_policy
@pytest.mark.parametrize("seed", range(3))
def test_plans_for_many_sessions_are_valid(name, seed):
    policy, promises = POLICIES[name]
    for budget in BUDGETS:
        require_contract(policy, crowd(seed), HardwareProfile(budget), 12345.678, promises)


class Says:
    """Answers with these plans in turn."""

    def __init__(self, *plans: BatchPlan) -> None:
        self._plans = itertools.cycle(plans)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        return next(self._plans)


def test_the_contract_notices_what_is_wrong():
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


# -- devices that lie about their confidences -------------------------------------------------------------------


LIARS, BYSTANDERS, LIED_TOKENS = 16, 2, 200
HONEST = (1.0,)  # says nothing
LIES = {"sure": (SURE,), "hopeless": (0.0,), "anything": (0.0, 0.3, 0.6, SURE, 1.0)}
# Rude devices with the fastest links draft as much as they can: the more of it stands, the more a lie can gain.
LIAR = Habits(link_s=1e-4, draft_s=1e-6, length=16, rude=True)


def beside(told: tuple[float, ...], right: float, tenant: str) -> tuple[float, int]:
    """Seconds of the slower bystander's answer, and positions that the target computed for all."""
    world = World(make_policy("goodput", PolicyOptions(WAIT)), HardwareProfile(256, CPU), seed=1)
    good = [world.join(replace(GOOD, told=(0.8,)), LIED_TOKENS, tenant="good") for _ in range(BYSTANDERS)]
    for _ in range(LIARS):
        world.join(replace(LIAR, right=right, told=told), 2 * LIED_TOKENS, tenant=tenant)
    world.run()
    assert all(user.truth.tokens == user.script for user in world.users)
    return max(user.seconds for user in good), world.loop.machine.target.engine.computed


honest = cache(beside)


@pytest.mark.parametrize("tenant", ["bad", "good"])
@pytest.mark.parametrize(
    "right", [0.3, *(pytest.param(each, marks=pytest.mark.long) for each in (0.0, 0.1, 0.5))]
)
@pytest.mark.parametrize("lie", LIES)
def test_a_bystander_keeps_his_rate_and_liars_get_no_more_rows(lie, right, tenant):
    seconds, computed = beside(LIES[lie], right, tenant)
    usual_s, usual = honest(HONEST, right, tenant)
    assert seconds <= 1.05 * usual_s
    assert computed <= 1.05 * usual


def test_without_correction_he_would_lose_half_of_it(monkeypatch):
    """The attack is a real one."""
    usual_s, usual = honest(HONEST, 0.3, "bad")
    monkeypatch.setattr(ConfidenceCalibration, "add_verdict", lambda self, tried: None)
    seconds, computed = beside((SURE,), 0.3, "bad")
    assert seconds > 2 * usual_s and computed > 2 * usual


def test_who_changes_its_name_is_known_by_its_tenant():
    """Each sequence of a device without a name is a new device; its tenant has learned of those before."""
    world = World(make_policy("goodput", PolicyOptions(WAIT)), HardwareProfile(256, CPU), seed=1)
    before = world._devices.of("bad", "").reach((SURE,))
    for _ in range(4):
        world.join(replace(LIAR, right=0.3, told=(SURE,)), LIED_TOKENS, tenant="bad")
    world.run()
    assert world._devices.of("bad", "").reach((SURE,)) < (0.6,)
    assert world._devices.of("good", "").reach((SURE,)) == before


def periodic(context: Sequence[int]) -> int:
    return 1 + len(context) % 7


@pytest.mark.parametrize("tree", [0, 12])
async def test_the_liars_own_text_is_the_targets(tree):
    """Chains, and trees whose order the lies decide."""
    # Steps that take a while: a fake target may have written everything before the first draft comes through.
    async with running(SlowEngine(400, target=periodic), policy=Goodput(0.05)) as network:
        asking = [
            ask(network, [id, 2, 3], Liar(CachebackFactory().create(), id), stop=FixedLength(4, tree=tree))
            for id in range(1, 6)
        ]
        answers = await asyncio.gather(*asking)
        assert network.manager.loop.machine.stats.drafts.accepted > 0
        assert [answer.tokens for answer in answers] == [tuple(1 + place % 7 for place in range(3, 43))] * 5
