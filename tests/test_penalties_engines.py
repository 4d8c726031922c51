"""Penalties and min_p with real models: both engines write what plain transformers do, and drafts gain by counting."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import cache

import pytest

from edge_client.drafters import DRAFTERS
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from lab.testbed.reference import Reference, Sampling
from opensled.core.messages import Open, SamplingParams
from opensled.core.noise import noise_key
from opensled.models.store import heldout_path, model_path
from tests.system import CALM, ask, running
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig

PLAIN = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
CASES = (
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"temperature": 0.8, "presence_penalty": 1.5, "min_p": 0.05, "seed": 3},
)
TOKENS = 24
NEAR = 0.03  # lead in logits that may flip in llama.cpp's float32 (lab/testbed/soak/judge.py)


@cache
def target() -> Reference:
    return Reference(model_path("tiny"))


@cache
def prompt() -> tuple[int, ...]:
    items = [json.loads(line) for line in heldout_path().read_text().splitlines()]
    chats = [item["messages"] for item in items if item.get("messages")]
    return tuple(target().render_chat(chats[19]))


@cache
def expected(number: int) -> tuple[int, ...]:
    return tuple(target().generate(prompt(), **CASES[number], max_tokens=TOKENS, ignore_eos=True)[0])


def params(number: int) -> SamplingParams:
    return SamplingParams(**CASES[number], max_tokens=TOKENS, ignore_eos=True)


@cache
def engine(name: str):
    dtype = {"dtype": "float64"} if name == "torch" else {}
    model = str(model_path("tiny"))
    config = ServeConfig(model=model, engine=name, device="cpu", threads=1, kv_tokens=1024, **dtype)
    return ENGINES.get(name)(config).engine


@cache
def factory(drafter: str):
    return DRAFTERS.get(drafter)(str(model_path("tiny-draft")), 1)


def is_right(number: int, told: tuple[int, ...]) -> bool:
    """Whether each token is the reference's choice after those before it, or nearly so."""
    case = dict(CASES[number])
    sampling = Sampling(key=noise_key(case.pop("seed", 0)), **case)
    rows = target().logits([*prompt(), *told[:-1]], last=len(told))
    scores = [sampling.scores(row, len(prompt()) + at, told[:at]) for at, row in enumerate(rows)]
    return all(row.max() - row[token] <= NEAR for row, token in zip(scores, told))


@pytest.mark.parametrize("name", ["torch", "llamacpp"])
@pytest.mark.parametrize(("drafter", "tree"), [("none", 0), ("llamacpp", 0), ("cacheback", 12)])
def test_the_text_is_the_targets_own(name, drafter, tree):
    async def scenario():
        async with running(engine(name), draft_wait=0.5) as network:
            asked = [
                ask(
                    network,
                    prompt(),
                    factory(drafter).create(),
                    params(number),
                    stop=FixedLength(4, tree=tree),
                )
                for number in range(len(CASES))
            ]
            return await asyncio.gather(*asked)

    for number, answer in enumerate(asyncio.run(scenario())):
        assert len(answer.tokens) == TOKENS
        assert answer.tokens == expected(number) or (name == "llamacpp" and is_right(number, answer.tokens))


async def tokens_per_round(drafts: SamplingParams) -> float:
    """Of the first case, with a draft model that samples as `drafts` says."""
    async with running(engine("torch")) as network:
        session = RemoteSession(network.connect, Open(prompt(), params(0)), CALM)
        thread = DraftThread(factory("llamacpp").create(), FixedLength(4))
        try:
            await session.open()
            commits = [commit async for commit in generate(session, thread, drafts)]
        finally:
            thread.close()
    assert session.truth.generated == expected(0)
    rounds = [commit for commit in commits if commit.drafted]
    return sum(len(commit.tokens) for commit in rounds) / len(rounds)


def test_drafts_that_count_the_penalties_are_accepted_more_often():
    counting = asyncio.run(tokens_per_round(params(0)))
    ignoring = asyncio.run(tokens_per_round(replace(params(0), **PLAIN)))
    assert counting >= ignoring
