"""Devices that lie about their confidences: what a bystander keeps, and that no text changes.

In simulated time under policy `goodput`, beside as many devices with the same drafts that say nothing of them. A server
believes a device as far as its drafts have stood (scheduler/confidences.py).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from edge_client.drafters.cacheback import CachebackFactory
from edge_client.lengths.fixed import FixedLength
from hw_profiles.step_cost import HardwareProfile
from lab.testbed.soak.liar import SURE, Liar
from scheduler import make_policy
from scheduler.confidences import ConfidenceCalibration
from scheduler.goodput.policy import Goodput
from scheduler.plan import PolicyOptions
from tests.gated_target import SlowEngine
from tests.policy_world import Habits, World
from tests.system import ask, running
from tests.test_policies_starvation import CPU, GOOD, WAIT

LIARS, BYSTANDERS, TOKENS = 16, 2, 200
HONEST = (1.0,)  # says nothing
LIES = {"sure": (SURE,), "hopeless": (0.0,), "anything": (0.0, 0.3, 0.6, SURE, 1.0)}
# Rude devices with the fastest links draft as much as they can: the more of it stands, the more a lie can gain.
LIAR = Habits(link_s=1e-4, draft_s=1e-6, length=16, rude=True)


def beside(told: tuple[float, ...], right: float, tenant: str) -> tuple[float, int]:
    """Seconds of the slower bystander's answer, and positions that the target computed for all."""
    world = World(make_policy("goodput", PolicyOptions(WAIT)), HardwareProfile(256, CPU), seed=1)
    good = [world.join(replace(GOOD, told=(0.8,)), TOKENS, tenant="good") for _ in range(BYSTANDERS)]
    for _ in range(LIARS):
        world.join(replace(LIAR, right=right, told=told), 2 * TOKENS, tenant=tenant)
    world.run()
    assert all(user.truth.tokens == user.script for user in world.users)
    return max(user.seconds for user in good), world.loop.machine.target.engine.computed


honest = cache(beside)


@pytest.mark.parametrize("tenant", ["bad", "good"])
@pytest.mark.parametrize(
    "right", [0.3, *(pytest.param(each, marks=pytest.mark.long) for each in (0.0, 0.1, 0.5))]
)
@pytest.mark.parametrize("lie", LIES)
def test_a_bystander_keeps_his_rate_and_liars_get_no_more_rows(lie: str, right: float, tenant: str) -> None:
    seconds, computed = beside(LIES[lie], right, tenant)
    usual_s, usual = honest(HONEST, right, tenant)
    assert seconds <= 1.05 * usual_s
    assert computed <= 1.05 * usual


def test_without_correction_he_would_lose_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack is a real one."""
    usual_s, usual = honest(HONEST, 0.3, "bad")
    monkeypatch.setattr(ConfidenceCalibration, "add_verdict", lambda self, tried: None)
    seconds, computed = beside((SURE,), 0.3, "bad")
    assert seconds > 2 * usual_s and computed > 2 * usual


def test_who_changes_its_name_is_known_by_its_tenant() -> None:
    """Each sequence of a device without a name is a new device; its tenant has learned of those before."""
    world = World(make_policy("goodput", PolicyOptions(WAIT)), HardwareProfile(256, CPU), seed=1)
    before = world._devices.of("bad", "").reach((SURE,))
    for _ in range(4):
        world.join(replace(LIAR, right=0.3, told=(SURE,)), TOKENS, tenant="bad")
    world.run()
    assert world._devices.of("bad", "").reach((SURE,)) < (0.6,)
    assert world._devices.of("good", "").reach((SURE,)) == before


def periodic(context: Sequence[int]) -> int:
    return 1 + len(context) % 7


@pytest.mark.parametrize("tree", [0, 12])
async def test_the_liars_own_text_is_the_targets(tree: int) -> None:
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
