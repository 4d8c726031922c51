"""Shared KV and the real engine: every text is what the reference, which shares no code with it, writes alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from functools import cache

import pytest

from edge_client.lengths.fixed import FixedLength
from lab.training.heldout import heldout_path
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from tests.system import ask, running
from tests.test_lossless import factory, reference
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.torch.torch_engine import TorchEngine, load

FEW_BLOCKS = 14  # of 16 tokens
ALIKE = 6  # sessions with the very same prompt
SYSTEM = "You are a helpful assistant in a small house. Answer in one or two short sentences, and never make things up."
SAMPLINGS = ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 40}, {"temperature": 1.0, "top_p": 0.9})


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    params: SamplingParams
    expected: tuple[int, ...]


@cache
def chats() -> list[list[dict[str, str]]]:
    items = [json.loads(line) for line in heldout_path().read_text().splitlines()]
    return [item["messages"] for item in items if item.get("messages")]


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


def test_sharing_makes_no_difference_to_anybody(exact):
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

    assert asyncio.run(body(True)) == asyncio.run(body(False))
