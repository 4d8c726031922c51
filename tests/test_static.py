"""The static policy, pure and under the real loop and engines."""

import asyncio
from functools import cache

import pytest

from edge_client.drafters.none import NoneDrafter
from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import UsageError
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.models.store import model_path
from scheduler import POLICIES, make_policy
from scheduler.plan import BatchPlan, PolicyOptions, Slice, Snapshot
from scheduler.static import Static
from tests.fakes import IMPATIENT, FakeEngine, OracleDrafter, Weather, continuation
from tests.hypothesis_profiles import bounded
from tests.system import ask, running
from tests.test_stateful_protocol import DRAFT_WAIT, Protocol
from tests.test_stateful_session import Sessions
from tests.views import viewed
from verify_server.engine.base import SampleRequest, Segment, TargetEngine
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig

BUDGET = 20
STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)


def view(id, uncomputed=1, draft=None, server_drives=False, waiting_since=0.0, paused=False, absent=False):
    return viewed(id, uncomputed, draft, server_drives, waiting_since, paused=paused, absent=absent)


def plan(*sessions, wait=1.0, batch=0, now=0.5):
    return Static(wait, batch).plan(Snapshot(sessions), HardwareProfile(max_step_tokens=BUDGET), now)


def test_a_class_that_makes_no_policy_is_refused_by_name():
    with pytest.raises(UsageError, match="FakeEngine is not a scheduling policy"):
        make_policy("tests.fakes:FakeEngine", PolicyOptions(0.5))


# -- the pure function ------------------------------------------------------------------------------------------


def test_the_policy_is_made_from_what_the_server_is_told():
    assert POLICIES.get("static").of(PolicyOptions(0.5, 3)) == Static(0.5, 3)


def test_nobody_there_sleeps_until_an_arrival():
    assert plan() == BatchPlan((), None)


def test_a_draft_waits_for_the_others_no_longer_than_their_time_is_up():
    sessions = view(1, draft=4), view(2, waiting_since=0.2)
    assert plan(*sessions) == BatchPlan((), 1.2)
    assert plan(*sessions, now=1.2).slices == (Slice(1, 1, True), Slice(2, 1, True, padding=4))


def test_a_full_batch_is_padded_to_its_longest_draft():
    slices = plan(view(1, draft=4), view(2, draft=1), view(3, server_drives=True)).slices
    assert slices == (Slice(1, 1, True), Slice(2, 1, True, padding=3), Slice(3, 1, True, padding=4))


def test_a_batch_size_is_neither_exceeded_nor_waited_for_in_vain():
    drafted = [view(id, draft=2, waiting_since=1.0 - id / 10) for id in range(1, 4)]
    late = view(4)
    assert [piece.session for piece in plan(*drafted, late, batch=2).slices] == [3, 2]
    assert plan(*drafted, late, batch=4).slices == ()
    assert len(plan(*drafted, batch=8).slices) == 3


def test_waiting_for_ever():
    assert plan(view(1, draft=1), view(2), wait=float("inf"), now=1e9) == BatchPlan((), None)


def test_a_prompt_is_computed_before_the_batch_and_not_in_it():
    slices = plan(
        view(1, draft=4), view(2, uncomputed=9, server_drives=True), view(3, uncomputed=30, draft=2)
    ).slices
    assert slices == (Slice(2, 9, True), Slice(3, 11, False))


def test_a_long_prompt_never_leaves_just_one_token_for_later():
    assert plan(view(1, uncomputed=BUDGET + 1, server_drives=True)).slices == (Slice(1, BUDGET - 1, False),)
    assert plan(view(1, uncomputed=BUDGET + 2, server_drives=True)).slices == (Slice(1, BUDGET, False),)


def test_lost_kv_of_a_silent_device_holds_nobody_up():
    assert plan(view(1, draft=4), view(2, uncomputed=9), batch=1).slices == (Slice(1, 1, True),)


def test_nobody_waits_for_readers_who_are_slow_or_gone():
    sessions = view(1, draft=2), view(2, server_drives=True, paused=True), view(3, absent=True)
    assert plan(*sessions).slices == (Slice(1, 1, True),)


def test_a_batch_beyond_the_budget_leaves_the_rest_for_the_next():
    sizes = [1, 1, 6, 1]
    slices = plan(*(view(id, draft=size) for id, size in enumerate(sizes))).slices
    assert [piece.session for piece in slices] == [0, 1]
    assert plan(view(1, draft=BUDGET + 5)).slices == (Slice(1, 1, True, draft=BUDGET - 1),)


# -- the text stays the target's own ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [0, 3])
async def test_a_storm_on_every_link_changes_nothing(batch):
    async with running(FakeEngine(num_blocks=400), policy=Static(0.02, batch), weather=STORM) as network:
        drafters = [*(OracleDrafter(0.7, id) for id in range(5)), NoneDrafter()]
        prompts = [[id, 2, 3] for id in range(1, 7)]
        asked = [ask(network, *pair, patience=IMPATIENT) for pair in zip(prompts, drafters)]
        for prompt, answer in zip(prompts, await asyncio.gather(*asked)):
            assert answer.tokens == tuple(continuation(prompt, 40))


async def test_drafting_sessions_are_verified_together():
    engine = FakeEngine(num_blocks=400)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    async with running(engine, policy=Static(5.0), max_step_tokens=512) as network:
        prompts = [[id, 2, 3] for id in range(1, 9)]
        asked = [ask(network, prompt, OracleDrafter(1.0), params) for prompt in prompts]
        await asyncio.gather(*asked)
    assert sum(engine.batches) / len(engine.batches) > 6


class StaticSessions(Sessions):
    policy = Static(0.0)


class StaticProtocol(Protocol):
    policy = Static(DRAFT_WAIT)


class LongStaticSessions(StaticSessions):
    pass


class LongStaticProtocol(StaticProtocol):
    pass


TestStaticSessions = bounded(StaticSessions, examples=20, steps=60)
TestStaticProtocol = bounded(StaticProtocol, examples=30, steps=60)
TestLongStaticSessions = pytest.mark.long(bounded(LongStaticSessions, examples=60, steps=60))
TestLongStaticProtocol = pytest.mark.long(bounded(LongStaticProtocol, examples=100, steps=60))


# -- padding on real engines ------------------------------------------------------------------------------------


@cache
def engine_of(name: str) -> TargetEngine:
    model = str(model_path("tiny"))
    config = ServeConfig(model=model, engine=name, device="cpu", threads=1, kv_tokens=256)
    return ENGINES.get(name)(config).engine


def tokens_by(engine: TargetEngine, first_block: int, padding: int) -> list[int]:
    """What it writes after a prompt, one token a step; every step computes `padding` positions once more."""
    tokens, computed = [300, 301, 302, 303, 304], 0
    blocks = tuple(range(first_block, first_block + 64 // engine.info.block_size))
    params = SamplingParams(temperature=0.8)
    for _ in range(12):
        start = max(0, computed - padding)
        scores = engine.forward([Segment(tuple(tokens[start:]), start, blocks, rows=1)])
        computed = len(tokens)
        tokens += scores.sample_one(SampleRequest([0], params, noise_key(5), computed))
    return tokens[5:]


@pytest.mark.parametrize("name", ["torch", "llamacpp"])
@pytest.mark.parametrize("padding", [1, 3, 8])
def test_computing_positions_again_changes_no_token(name, padding):
    engine = engine_of(name)
    blocks = 64 // engine.info.block_size
    assert tokens_by(engine, blocks, padding) == tokens_by(engine, 0, 0)
