"""Texts of vLLM are those of engine torch, whoever drafts, and fewer steps write them."""

from __future__ import annotations

import json

import pytest

from opensled.core.messages import SamplingParams
from tests.vllm.answers import (
    QUESTIONS,
    Answer,
    Drafts,
    assert_close_logprobs,
    by_torch,
    prompt_of,
    running,
    without,
    write,
)

GREEDY, WARM, NUCLEUS = (
    SamplingParams(temperature=0.0, seed=3),
    SamplingParams(temperature=0.8, seed=4),
    SamplingParams(temperature=1.0, top_p=0.9, seed=5),
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
KINDS = {
    "greedy": {"params": GREEDY},
    "warm": {"params": WARM},
    "nucleus": {"params": NUCLEUS},
    "penalties": {
        "params": SamplingParams(
            temperature=0.8, seed=6, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2
        )
    },
    "biases": {"params": SamplingParams(temperature=0.8, seed=7, logit_bias=((15, 5.0), (317, -100.0)))},
    "schema": {"params": WARM, "schema": SCHEMA},
    "schema, greedy": {"params": GREEDY, "schema": SCHEMA},
    "log-probabilities": {"params": WARM, "top_logprobs": 3},
}


@pytest.fixture(scope="module")
def core():
    with running() as core:
        yield core


def answers_of(kind: str) -> list[Answer]:
    return [Answer(prompt_of(question), **KINDS[kind]) for question in QUESTIONS]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_engine_torch(core, kind):
    wanted = [by_torch(answer) for answer in answers_of(kind)]
    alone = {}
    drafts = {
        "none": without,
        "right": Drafts(wanted),
        "60 % right": Drafts(wanted, right=0.6),
        "60 % right, 40 % late": Drafts(wanted, right=0.6, late=0.4),
    }
    for name, drafting in drafts.items():
        written = answers_of(kind)
        alone[name] = write(core, written, drafting)
        for one, other in zip(wanted, written):
            assert one.text == other.text, name
            assert one.finish_reason == other.finish_reason
            assert_close_logprobs(one, other)
    print(kind, alone)
    longest = max(len(answer.text) for answer in wanted)
    assert alone["none"] == longest, "one token in a step"
    assert alone["right"] <= -(-longest // 6) + 1, "the first step computes the prompt"
    assert alone["right"] < alone["60 % right"] < alone["none"]
