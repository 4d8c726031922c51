"""A model that two processes compute together, each with half of every layer."""

from __future__ import annotations

import pytest

from opensled.core.errors import EngineLost
from opensled.core.messages import SamplingParams
from tests.vllm.answers import (
    QUESTIONS,
    Answer,
    Drafts,
    assert_close_logprobs,
    by_torch,
    one_step,
    prompt_of,
    running,
    without,
    write,
)

KINDS = (
    {"params": SamplingParams(temperature=0.0)},
    {"params": SamplingParams(temperature=0.8, seed=4), "top_logprobs": 2},
    {"params": SamplingParams(temperature=0.8, seed=6, frequency_penalty=0.5)},
    {"params": SamplingParams(temperature=0.8, seed=8), "schema": '{"type": "object", "maxProperties": 2}'},
)


def answers() -> list[Answer]:
    return [
        Answer(prompt_of(question), **KINDS[number % len(KINDS)]) for number, question in enumerate(QUESTIONS)
    ]


def test_two_processes_write_what_one_writes():
    wanted = [by_torch(answer) for answer in answers()]
    seen = {}
    with running(tensor_parallel_size=2) as core:
        assert core.info("tiny").processes == 2
        for name, drafting in {
            "none": without,
            "right": Drafts(wanted),
            "60 % right, 30 % late": Drafts(wanted, 0.6, 0.3),
        }.items():
            written = answers()
            seen[name] = write(core, written, drafting)
            for one, other in zip(wanted, written):
                assert one.text == other.text, name
                assert_close_logprobs(one, other)
        print(seen)
        assert seen["right"] < seen["60 % right, 30 % late"] < seen["none"]

        core._core.model_executor.workers[1].proc.kill()
        [answer] = answers()[:1]
        core.add("lost", answer.tokens, answer.ends)
        answer.name = "lost"
        with pytest.raises(EngineLost):
            one_step(core, {"lost": answer}, without)
