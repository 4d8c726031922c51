"""Equal beginnings that arrive together: one session computes them, the others wait a step and take them over."""

import asyncio
import random

import pytest

from opensled.core.errors import EngineError
from opensled.core.messages import SamplingParams
from opensled.models.store import model_file, model_path
from scheduler.plan import Slice
from tests.fakes import FakeEngine, FakeText, Silent, continuation
from tests.loops import in_loop
from tests.rounds import end
from tests.sessions import Pressed
from tests.system import ask, running
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.torch import torch_engine
from verify_server.round.session import Session
from verify_server.round.step import run_step
from verify_server.rules.decide import step_failed

PROMPT = [1 + number % 40 for number in range(30)]  # 7 full blocks of 4, and two tokens
FEW = SamplingParams(temperature=0.0, max_tokens=6)
ROOM = {"num_blocks": 200, "block_size": 4}


@in_loop
async def together(prompts: list[list[int]], engine: FakeEngine | None = None, **options) -> int:
    """Positions that the target computes when all ask at the same moment; each text is what it writes alone."""
    engine = engine or FakeEngine(200)
    async with running(engine, **options) as network:
        answers = await asyncio.gather(*(ask(network, prompt, Silent(), FEW) for prompt in prompts))
    assert [answer.tokens for answer in answers] == [tuple(continuation(prompt, 6)) for prompt in prompts]
    return engine.computed


def alone(prompt: list[int]) -> int:
    return together([prompt])


def pressed(prompts: list[list[int]], pool: dict[str, int] = ROOM, **options) -> Pressed:
    """Sessions that the server decodes unasked, step by step."""
    return Pressed(0.0, prompts, pool, **options)


def whole(world: Pressed, *numbers: int) -> tuple[Slice, ...]:
    """All that is to be computed of these sessions, when they have taken over what is there."""
    world.loop.machine.plan(0.0)
    return tuple(Slice(number, world.sessions[number].sequence.uncomputed, True) for number in numbers)


# -- what is spared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_step_tokens", [6, 16, 40, 512], ids="{} a step".format)
@pytest.mark.parametrize("length", [29, 30, 32, 120])
def test_equal_prompts_are_computed_once(length, max_step_tokens):
    """But for the last block, whose last token everybody computes."""
    prompt, count = (PROMPT * 4)[:length], 8
    # The rest of the prompt, and all of the answer but its last token
    own = length - (length - 1) // 4 * 4 + 5
    assert together([prompt] * count, max_step_tokens=max_step_tokens) == alone(prompt) + (count - 1) * own


def test_a_common_beginning_is_computed_once():
    prompts = [[*PROMPT[:24], 41 + number, *PROMPT] for number in range(4)]
    assert together(prompts, max_step_tokens=512) == sum(map(alone, prompts)) - 3 * 24


def test_texts_that_part_again_and_again_are_a_tree_of_which_each_branch_is_computed_once():
    """8 prompts that part in two at the end of the 2nd, the 4th and the 6th block."""
    choices = [[41 + (number >> bit & 1) for bit in range(3)] for number in range(8)]
    prompts = [
        [token for part in parts for token in (*PROMPT[:7], part)] + [9, 9]
        for parts in choices
    ]  # fmt: skip
    spared = 7 * 4 + 6 * 4 + 6 * 4 + 4 * 4 + 4 * 4
    assert together(prompts, max_step_tokens=512) == sum(map(alone, prompts)) - spared


@pytest.mark.parametrize(
    "options",
    [{"prefix_cache": False}, {"engine": FakeEngine(200, facts={"shares_blocks": False})}],
    ids=["no prefix cache", "an engine that cannot share"],
)
def test_where_nothing_is_shared_nobody_waits(options):
    assert together([PROMPT] * 3, max_step_tokens=512, **options) == 3 * alone(PROMPT)


def test_one_step_and_the_others_have_it():
    """All decide in the second step; memory holds the common blocks once."""
    world = pressed([PROMPT] * 5, max_step_tokens=512)
    assert world.step() == {0}
    assert world.step() == {0, 1, 2, 3, 4}
    assert world.loop.machine.target.pool.states()["shared"] == 7
    assert world.loop.machine.target.pool.states()["used"] == 5  # a last block each


def _torch():
    return torch_engine.load(str(model_path("tiny")), device="cpu", dtype="float32", kv_tokens=2048)


def _llamacpp():
    return llamacpp.load(model_file("tiny", "*.gguf"), threads=1, kv_tokens=2048)


@pytest.mark.parametrize("load", [_torch, _llamacpp])
def test_real_engines_write_the_same_and_compute_a_common_prompt_once(load):
    """Four noises over one prompt; torch is at level exact."""
    engine, count = load(), 4
    prompt = [3 + 7 * number % 300 for number in range(150)]
    cases = [SamplingParams(temperature=0.8, seed=seed, max_tokens=8) for seed in range(count)]

    async def written(params: list[SamplingParams]) -> tuple[list[tuple[int, ...]], int]:
        text = FakeText(engine.info.vocab_size)
        async with running(engine, max_step_tokens=512, text=text) as network:
            answers = await asyncio.gather(*(ask(network, prompt, Silent(), each) for each in params))
            return [answer.tokens for answer in answers], network.manager.loop.machine.stats.positions

    by_itself = [asyncio.run(written([each])) for each in cases]
    texts, positions = asyncio.run(written(cases))
    assert texts == [text for (text,), _ in by_itself] and len(set(texts)) == count
    assert positions == sum(computed for _, computed in by_itself) - (count - 1) * 144


# -- who waits for whom -----------------------------------------------------------------------------------------


def test_tenants_do_not_wait_for_each_other():
    world = pressed([PROMPT], max_step_tokens=512)
    world.open(PROMPT, "another")
    assert world.step() == {0, 1}
    assert world.loop.machine.target.pool.hits == 0


def test_who_comes_first_in_the_step_leads():
    world = pressed([PROMPT] * 3)
    assert world.step(*whole(world, 2, 1, 0)) == {2}


def test_a_block_that_this_step_does_not_complete_is_not_waited_for():
    world = pressed([PROMPT] * 2)
    assert world.step(Slice(0, 3, False), Slice(1, 3, False)) == {0, 1}
    assert world.step(Slice(0, 1, False), Slice(1, 1, False)) == {0}


def test_the_last_block_is_everybodys_own():
    assert pressed([PROMPT[:4]] * 2).step() == {0, 1}


def test_who_is_not_planned_is_not_waited_for():
    world = pressed([PROMPT] * 3)
    world.step(Slice(0, 8, False))
    assert world.step(*whole(world, 1, 2)) == {1}
    assert world.loop.machine.target.pool.hits == 2 * 8


def test_who_gets_no_memory_is_not_waited_for():
    world = pressed([], max_step_tokens=512)
    for budget in (12, 0):
        world.open(PROMPT, budget=budget)
    assert world.step(*whole(world, 0, 1)) == {1}
    assert world.loop.machine.left_out == {0}


def test_who_waits_is_planned_and_loses_kv_to_older_ones_only():
    """Also where its device is at work on a draft, so that it would rest otherwise."""
    world = pressed([PROMPT, PROMPT, [7] * 30], {"num_blocks": 12, "block_size": 4})
    second = world.sessions[1]
    world.draft(second, 1)
    world.step(Slice(1, 30, True))
    second.sequence.memory.withdraw()
    second.forget_kv()
    world.step(Slice(0, 8, False))
    planned = whole(world, 0, 1, 2)
    assert second.rests and second.sequence.computed == 8
    assert world.step(*planned) == {0}
    assert second.sequence.computed == 8 and world.loop.machine.left_out == {2}


def test_nobody_waits_for_a_session_without_a_reader():
    world = pressed([PROMPT] * 2)
    world.sessions[0].detach()
    assert world.step() == {1}


# -- what becomes of the one that leads -------------------------------------------------------------------------


def test_a_leader_that_is_cancelled_in_its_step_leaves_what_it_computed():
    world = pressed([PROMPT] * 3, max_step_tokens=512)
    leader, *others = world.sessions
    loop = world.loop
    work = loop.machine.fit(loop.machine.plan(0.0).slices, 0.0)
    loop.remove(leader)
    end(loop, work, run_step(world.engine, work))
    assert world.step() == {1, 2}
    assert all(len(each.sequence) == len(PROMPT) + 1 for each in others)


def test_a_leader_that_fails_is_followed_by_the_next_one():
    world = pressed([PROMPT] * 3, max_step_tokens=512)
    loop = world.loop
    for leader in (0, 1):
        work = loop.machine.fit(loop.machine.plan(0.0).slices, 0.0)
        assert [item.session.id for item in work] == [leader]
        failed = step_failed()
        assert isinstance(failed, EngineError)
        end(loop, work, [failed])
    assert loop.machine.target.pool.hits == 0
    assert world.step() == {2}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_everybody_is_finished_and_who_waits_gets_on(seed):
    """Little memory, small steps, beginnings of all lengths; sessions come, are cancelled, and lose their readers."""
    chance = random.Random(seed)
    pool = {"num_blocks": chance.choice([11, 20, 60]), "block_size": chance.choice([1, 4, 5])}
    pool["num_blocks"] *= 1 + 3 * (pool["block_size"] == 1)
    world = pressed([], pool, max_step_tokens=chance.choice([3, 16, 64, 500]))
    for _ in range(40):
        if chance.random() < 0.4:
            head = PROMPT[: chance.randint(0, 30)]
            world.open([*head, *[9] * chance.randint(1, 8)], chance.choice("ab"), chance.randint(1, 8))
        live = list(world.loop.machine.sessions.values())
        if live and chance.random() < 0.15:
            _disturb(world, chance.choice(live), chance)
        _watched_step(world)
    for session in world.loop.machine.sessions.values():
        if not session.has_reader:
            world.loop.attach(session, len(session.sequence))
    world.sessions = [each for each in world.sessions if each.sequence.finish_reason or not each.closed]
    world.must_finish(1000)


def _disturb(world: Pressed, session: Session, chance: random.Random) -> None:
    what = chance.choice(["cancel", "leave", "return", "forget"])
    if what == "cancel":
        world.loop.remove(session)
    elif what == "leave":
        session.detach()
    elif what == "return" and not session.has_reader:
        world.loop.attach(session, len(session.sequence))
    elif what == "forget":
        session.forget_kv()


def _watched_step(world: Pressed) -> None:
    """A step; a session that waits in it for another one has a block more in the next one."""
    loop = world.loop
    plan = loop.machine.plan(world.now)
    before = {piece.session: loop.machine.sessions[piece.session].sequence.computed for piece in plan.slices}
    work = loop.machine.fit(plan.slices, world.now)
    busy = {item.session.id for item in work} | loop.machine.left_out
    lost = {number for number in before if loop.machine.sessions[number].sequence.computed < before[number]}
    assert work or not any(each.has_reader for each in loop.machine.sessions.values())
    if work:
        end(loop, work, run_step(world.engine, work))
    loop.machine.plan(0.0)
    for number in before.keys() - busy - lost:
        assert (
            loop.machine.sessions[number].sequence.computed // loop.machine.target.pool.block_size
            > before[number] // loop.machine.target.pool.block_size
        )
