"""Texts that begin alike share their KV: what is spared, who shares with whom, and that no text changes by it."""

import asyncio
import dataclasses
from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.lengths.fixed import FixedLength
from opensled.core.errors import OpenSledError
from opensled.core.messages import Open, SamplingParams
from opensled.models.store import model_path
from tests.fakes import EOS, POISON, FakeEngine, OracleDrafter, Silent, continuation
from tests.loops import in_loop
from tests.lossless import chats, factory, reference
from tests.serving import finish, first_reply, linked, serving
from tests.system import Answer, ask, running
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.torch.torch_engine import TorchEngine, load
from verify_server.kv.prefix import prefix_keys

KEY = b"a secret of this test"
PROMPT = [1 + number % 40 for number in range(30)]
FEW = SamplingParams(temperature=0.0, max_tokens=6)
tokens = st.lists(st.integers(0, 2**31), max_size=70)


# -- keys -------------------------------------------------------------------------------------------------------


@given(tokens, tokens, st.integers(1, 9))
def test_texts_have_as_many_keys_in_common_as_they_have_full_blocks(head, tail, size):
    one, other = [*head, 5, *tail], [*head, 6, *tail]
    keys, others = prefix_keys(one, "t", KEY, size), prefix_keys(other, "t", KEY, size)
    same = len(head) // size
    assert len(keys) == (len(one) - 1) // size
    assert keys[:same] == others[:same]
    assert not set(keys[same:]) & set(others)


@given(tokens.filter(lambda text: len(text) > 4))
def test_tenants_and_secrets_have_no_keys_in_common(text):
    keys = [prefix_keys(text, tenant, key, 4) for tenant in "ab" for key in (KEY, b"another")]
    assert len({key for each in keys for key in each}) == sum(map(len, keys))


# -- what is spared ---------------------------------------------------------------------------------------------


@in_loop
async def served(
    *prompts: list[int], engine: FakeEngine | None = None, **options
) -> tuple[list[Answer], FakeEngine]:
    """Answers to `prompts`, one after the other, on one server."""
    engine = engine or FakeEngine()
    async with running(engine, **options) as network:
        return [await ask(network, prompt, Silent(), FEW) for prompt in prompts], engine


def test_a_second_session_computes_only_what_the_first_one_did_not():
    (answer,), alone = served(PROMPT)
    (again, both), engine = served(PROMPT, PROMPT)
    assert answer.tokens == again.tokens == both.tokens == tuple(continuation(PROMPT, 6))
    # 7 full blocks of 4; the last two tokens remain
    assert engine.computed - alone.computed == alone.computed - 28


def test_the_next_turn_of_a_chat_computes_only_what_is_new():
    turn = [*PROMPT, *continuation(PROMPT, 6), 7, 7, 7]
    (_,), first = served(PROMPT)
    (_,), alone = served(turn)
    (_, answer), engine = served(PROMPT, turn)
    assert answer.tokens == tuple(continuation(turn, 6))
    # Of the answer's last token nobody has computed the KV, so 35 positions are there, 8 full blocks.
    assert engine.computed - first.computed == alone.computed - 32


def test_a_prompt_of_full_blocks_is_computed_from_its_last_token_at_least():
    _, alone = served(PROMPT[:28])
    _, engine = served(PROMPT[:28], PROMPT[:28])
    assert engine.computed - alone.computed == alone.computed - 24


@pytest.mark.parametrize("shares", [True, False])
def test_an_engine_that_cannot_share_is_not_asked_to(shares):
    _, alone = served(PROMPT)
    _, engine = served(PROMPT, PROMPT, engine=FakeEngine(facts={"shares_blocks": shares}))
    assert (engine.computed < 2 * alone.computed) == shares


async def test_what_a_device_drafted_in_vain_is_found_by_nobody():
    wrong = [*PROMPT, 41, 41, 41, 41]  # what a liar drafts; somebody else's prompt

    class Liar(OracleDrafter):
        def propose(self):
            for id in wrong[len(PROMPT) :]:
                yield dataclasses.replace(next(super().propose()), id=id)

    async with running(FakeEngine()) as network:
        await ask(network, PROMPT, Liar(0.0), FEW)
        keys = prefix_keys([*wrong, 0], "local", network.manager.loop.machine.target.pool.prefixes.key, 4)
        assert set(keys[:7]) <= network.manager.loop.machine.target.memory.prefixes()
        assert not set(keys[7:]) & network.manager.loop.machine.target.memory.prefixes()


async def test_a_session_that_waits_for_its_turn_takes_over_what_is_computed_meanwhile():
    """Prompts longer than a step, opened at the same time: the second one's turn comes when the first is done."""
    prompt = PROMPT * 4

    async def body(count: int) -> int:
        engine = FakeEngine()
        async with running(engine, max_step_tokens=32) as network:
            answers = await asyncio.gather(*(ask(network, prompt, Silent(), FEW) for _ in range(count)))
        assert {answer.tokens for answer in answers} == {tuple(continuation(prompt, 6))}
        return engine.computed

    assert await body(3) < 1.5 * await body(1)


# -- who shares with whom ---------------------------------------------------------------------------------------


async def test_tenants_share_nothing():
    tenants = Tenants(by_token=(("one", "a"), ("two", "b")))
    asked = Open(tuple(PROMPT), FEW)
    async with serving(tenants) as (manager, address):
        for token in ("one", "two"):
            async with linked(address, token=token) as link:
                await finish(link, asked)
        assert manager.loop.machine.target.pool.hits == 0
        async with linked(address, token="one") as link:
            await finish(link, asked)
        assert manager.loop.machine.target.pool.hits == 28


async def test_a_budget_is_a_tenants_context_and_what_does_not_fit_is_refused():
    limits = SessionLimits(3, 8, 0.05, Tenants(default=TenantLimits(kv_tokens=40)))
    long = SamplingParams(temperature=0.0, max_tokens=100)
    async with serving(limits=limits) as (_, address), linked(address) as link:
        opened, tokens = await finish(link, Open(tuple(PROMPT[:20]), long))
        assert opened.limits.context_length == 40 - 8
        assert tokens == continuation(PROMPT[:20], 12)
        reply = await first_reply(link, Open((1,) * 32, long))
        assert (reply.code, reply.field) == (
            "invalid_request",
            "prompt",
        ) and "32 tokens > 32 maximum" in reply.reason


async def test_what_a_failed_session_computed_is_found_by_nobody():
    async with serving() as (manager, address), linked(address) as link:
        with pytest.raises(OpenSledError):
            await finish(link, Open((*PROMPT * 3, POISON), FEW))
        assert manager.loop.machine.target.memory.prefixes() == frozenset()
        assert (await finish(link, Open(tuple(PROMPT), FEW)))[1] == continuation(PROMPT, 6)


async def test_a_replica_tells_the_beginnings_it_holds():
    async with running(FakeEngine(), prefix_key=KEY) as network:
        await ask(network, PROMPT, OracleDrafter(0.5), FEW)
        pool = network.manager.loop.machine.target.pool
        keys = prefix_keys(PROMPT, "local", KEY, 4)
        assert len(keys) == 7 and set(keys) <= pool.recent_prefixes()
        assert pool.recent_prefixes(2) == set(keys[:2])


assert EOS not in PROMPT and POISON not in PROMPT


# -- with the real engine -----------------------------------------------------------------------------------------


FEW_BLOCKS = 14  # of 16 tokens
ALIKE = 6  # sessions with the very same prompt
SYSTEM = "You are a helpful assistant in a small house. Answer in one or two short sentences, and never make things up."
SAMPLINGS = ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 40}, {"temperature": 1.0, "top_p": 0.9})


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    params: SamplingParams
    expected: tuple[int, ...]


def case_of(prompt: tuple[int, ...], number: int, max_tokens: int = 14) -> Case:
    settings = {**SAMPLINGS[number % len(SAMPLINGS)], "seed": number, "max_tokens": max_tokens}
    return Case(prompt, SamplingParams(**settings), tuple(reference().generate(prompt, **settings)[0]))


@cache
def alike() -> tuple[Case, ...]:
    """One prompt several times with other noise; then prompts that part from it at every place within two blocks."""
    turns = [{"role": "system", "content": SYSTEM}, *chats()[7]]
    prompt = tuple(reference().render_chat(turns))
    same = [case_of(prompt, number) for number in range(ALIKE)]
    assert 48 < len(prompt) < FEW_BLOCKS * 8, "several blocks of the prompt are shared"
    parted = [(*prompt[:place], prompt[place] + 1, *prompt[place + 1 :]) for place in range(17, 49, 3)]
    return (*same, *(case_of(other, number, 6) for number, other in enumerate(parted)))


@pytest.fixture(scope="module", params=["float64", "float32"])
def exact(request):
    engine = load(str(model_path("tiny")), device="cpu", dtype=request.param, kv_tokens=4096)
    assert engine.info.numerics == "exact" and engine.info.shares_blocks
    return engine


async def answers(network, cases, drafter):
    made = [
        ask(network, case.prompt, factory(drafter).create(), case.params, stop=FixedLength(4))
        for case in cases
    ]
    return [answer.tokens for answer in await asyncio.gather(*made)]


@pytest.mark.parametrize("drafter", ["none", "llamacpp"])
async def test_texts_that_begin_alike_in_memory_for_a_few(exact, drafter):
    """KV for two of 17 sequences: blocks are shared, evicted, found again and recomputed."""
    cases, small = alike(), TorchEngine(exact._model, replace(exact.info, num_blocks=FEW_BLOCKS))
    async with running(
        small, draft_wait=0.2, max_step_tokens=96, limits=SessionLimits(linger=1.0)
    ) as network:
        written = await answers(network, cases, drafter)
        pool = network.manager.loop.machine.target.pool
    assert written == [case.expected for case in cases]
    assert pool.hits > 16 * len(cases) and pool.evictions > 0


async def test_a_chat_of_several_turns(exact):
    """Every turn takes over what was said before, its own answers included; another user talks in between."""
    users = [list(chats()[number][:1]) for number in (3, 11)]
    async with running(exact, draft_wait=0.2, max_step_tokens=96) as network:
        for number in range(6):
            turns = users[number % 2]
            case = case_of(tuple(reference().render_chat(turns)), number, 20)
            hits = network.manager.loop.machine.target.pool.hits
            assert await answers(network, [case], "llamacpp") == [case.expected]
            assert number < 2 or network.manager.loop.machine.target.pool.hits > hits
            text = reference().decode(case.expected)
            turns += [{"role": "assistant", "content": text}, {"role": "user", "content": "Why?"}]


async def test_sharing_makes_no_difference_to_anybody(exact):
    """All at once, with and without: equal to the last bit of every log-probability."""
    cases = alike()[: ALIKE + 2]

    async def body(shares: bool):
        async with running(exact, max_step_tokens=64, prefix_cache=shares) as network:
            made = [
                ask(network, case.prompt, factory("none").create(), case.params, top_logprobs=3)
                for case in cases
            ]
            told = await asyncio.gather(*made)
            assert bool(network.manager.loop.machine.target.pool.hits) == shares
            return [(answer.tokens, answer.logprobs) for answer in told]

    assert await body(True) == await body(False)
