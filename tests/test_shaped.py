"""Biased and guided answers are the shaped target's own, and log-probabilities its raw ones, whatever the device does.

The reference computes each step alone, without drafts; only the masks come from the grammar library that both use.
"""

import asyncio
import json

import numpy as np
import pytest

from edge_client.lengths.fixed import FixedLength
from lab.testbed.reference import Sampling
from opensled.core.messages import ChatMessage, Guide, SamplingParams, Tool
from opensled.core.noise import noise_key
from opensled.models.store import model_path
from tests.lossless import IMPATIENT, STORM, factory, reference
from tests.system import ask, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.riders.guide import GuideMasks
from verify_server.text.guide import GuideCompiler
from verify_server.text.hf_text import HFText

DRAFTERS = ("none", "lookup", "llamacpp")
CHAT = (ChatMessage("user", "Turn on the kitchen light."),)
SCHEMA = {
    "type": "object",
    "properties": {
        "room": {"enum": ["kitchen", "hall", "attic"]},
        "on": {"type": "boolean"},
        "level": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["room", "on", "level"],
    "additionalProperties": False,
}
SHAPES = {
    "bias": ((), {"logit_bias": ((20, 4.0), (300, -100.0), (11, 2.5))}),
    "schema": (Guide(json_schema=json.dumps(SCHEMA)), {}),
    "tool": (Guide(tools=(Tool("switch", "", json.dumps(SCHEMA)),), tool_choice="required"), {}),
    "schema and bias": (Guide(json_schema=json.dumps(SCHEMA)), {"logit_bias": ((18, 3.0),)}),
}
CASES = (({"temperature": 0.0}, False), ({"temperature": 0.8, "top_k": 40, "top_p": 0.95}, True))


@pytest.fixture(scope="module")
def text():
    return HFText(model_path("tiny"))


def expected(text, prompt, params, guide):
    """What the target alone writes, step by step; and its raw logits at each step."""
    engine_width = reference().model.config.vocab_size
    eos = tuple(reference().eos_ids)
    constraint = (
        GuideCompiler(text.tokenizer_json, engine_width, eos, text.chat_template).start(guide, ())
        if guide
        else None
    )
    sampling = Sampling(params.temperature, params.top_k, params.top_p, noise_key(params.seed))
    ids, rows = list(prompt), []
    while len(ids) < len(prompt) + params.max_tokens and not (rows and ids[-1] in eos):
        rows.append(reference().logits(ids)[0])
        logits = rows[-1].copy()
        for id, bias in params.logit_bias:
            logits[id] += bias
        if constraint:
            (mask,) = constraint.next_masks(())
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:engine_width]
            logits[bits == 0] = -np.inf
        ids.append(sampling.draw(logits, len(ids)))
        if constraint:
            constraint.commit(ids[-1:])
    return tuple(ids[len(prompt) :]), rows


async def answers(engine, text, prompt, params, guide, storm):
    weather = {"weather": STORM} if storm else {}
    patience = {"patience": IMPATIENT} if storm else {}
    async with running(
        engine, draft_wait=0.5, max_step_tokens=256, text=text, limits=SessionLimits(linger=2.0), **weather
    ) as network:
        asked = [
            ask(
                network, prompt, factory(drafter).create(), params,
                stop=FixedLength(4), guide=guide or None, top_logprobs=3, **patience,
            )
            for drafter in DRAFTERS
        ]  # fmt: skip
        return await asyncio.gather(*asked)


@pytest.mark.parametrize(("sampling", "storm"), CASES, ids=["greedy", "sampled in a storm"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shaped_answer_is_the_shaped_targets_own(exact64, text, shape, sampling, storm):
    guide, biases = SHAPES[shape]
    params = SamplingParams(**sampling, **biases, seed=5, max_tokens=150)
    prompt = text.render(CHAT, guide.tools if guide else ())
    tokens, rows = expected(text, prompt, params, guide)
    for answer in asyncio.run(answers(exact64, text, prompt, params, guide, storm)):
        assert answer.tokens == tokens
        check_logprobs(answer, tokens, rows)
    if guide:
        json.loads(reference().decode(tokens))
        assert answer.finish_reason == "eos"


def check_logprobs(answer, tokens, rows) -> None:
    """Raw ones of every committed token, and the three likeliest in order."""
    assert len(answer.logprobs) == len(tokens)
    for entry, token, row in zip(answer.logprobs, tokens, rows):
        raw = row - row.max()
        raw -= np.log(np.exp(raw).sum())
        assert entry[0][0] == token
        assert [id for id, _ in entry[1:]] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [value for _, value in entry] == pytest.approx([raw[id] for id, _ in entry], abs=1e-5)


async def test_a_finished_answer_gives_its_grammar_back(exact64, text):
    """The session itself is remembered for a while, for a reader who lost the end."""
    guide, _ = SHAPES["schema"]
    params = SamplingParams(temperature=0, max_tokens=60)
    async with running(exact64, draft_wait=0.5, text=text, limits=SessionLimits(linger=60.0)) as network:
        await ask(network, text.render(CHAT), factory("none").create(), params, guide=guide)
        (session,) = network.manager.remembered
        assert session.sequence.finish_reason == "eos"
        assert [rider.constraint for rider in session.riders if isinstance(rider, GuideMasks)] == [None]
