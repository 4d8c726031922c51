"""In bfloat16 a text may part where two tokens are nearly as likely: drafts must not be worse than another batch is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import sqrt

import pytest

from opensled.core.messages import ChatMessage, SamplingParams
from tests.vllm.answers import QUESTIONS, Answer, Drafting, Drafts, running, without, write
from tests.vllm.test_model_folders import SMOLLM2
from verify_server.engine.vllm.core import VllmCore
from verify_server.text.hf_text import HFText
from vllm_plugin.model_folder import folder_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.real,
    pytest.mark.skipif(not SMOLLM2.is_file(), reason="needs SmolLM2; run: opensled pull smollm2"),
]

TOKENS, AT_ONCE = 48, 8
TAILS = ("", " Say it in one sentence.", " Write a long story.", " Why?", " Name the reasons.", " Be polite.")
ANSWERS = len(TAILS) * len(QUESTIONS)


@pytest.fixture(scope="module")
def target():
    folder = folder_of(str(SMOLLM2))
    with running(model=str(folder), dtype="bfloat16") as core:
        yield core, HFText(folder)


def answers(text: HFText, temperature: float) -> list[Answer]:
    """48 of 48 tokens each, in one order; no end of a text stops them."""
    found = []
    for number, question in enumerate(question + tail for tail in TAILS for question in QUESTIONS):
        params = SamplingParams(temperature=temperature, seed=number)
        prompt = text.render([ChatMessage("user", question)])
        found.append(Answer(prompt, params, TOKENS, ends_at_eos=False))
    return found


def written(core: VllmCore, asked: Sequence[Answer], drafting: Drafting = without, at_once: int = AT_ONCE):
    """Batches of so many, in the order that is given."""
    for place in range(0, len(asked), at_once):
        write(core, asked[place : place + at_once], drafting)
    return asked


def shuffled(asked: Sequence[Answer], seed: int) -> list[Answer]:
    found = list(asked)
    random.Random(seed).shuffle(found)
    return found


def parted(plain: Sequence[Answer], others: Sequence[Answer]) -> int:
    """How many answers differ."""
    texts = {(answer.prompt, answer.params): answer.text for answer in others}
    return sum(texts[answer.prompt, answer.params] != answer.text for answer in plain)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_turn_no_more_tokens_round_than_other_batches_do(target, temperature):
    core, text = target

    def anew() -> list[Answer]:
        return answers(text, temperature)

    plain, alone = written(core, anew()), written(core, anew(), at_once=1)
    others = {
        "another order": parted(plain, written(core, shuffled(anew(), 1))),
        "batches of 5": parted(plain, written(core, shuffled(anew(), 2), at_once=5)),
        "batches of 3": parted(plain, written(core, shuffled(anew(), 3), at_once=3)),
    }
    drafted = {
        "right": parted(plain, written(core, anew(), Drafts(plain))),
        "60 % right": parted(plain, written(core, anew(), Drafts(plain, 0.6))),
        "60 % right, 30 % late": parted(plain, written(core, anew(), Drafts(plain, 0.6, 0.3))),
    }
    one = parted(plain, alone), parted(alone, written(core, anew(), Drafts(alone, 0.6), at_once=1))
    print(
        f"T = {temperature}: of {len(plain)} answers differ without drafts {others}, with drafts {drafted};"
    )
    print(f"one at a time and at once {one[0]}, one at a time with drafts and without {one[1]}")
    assert max(drafted.values()) <= expected(sum(others.values()), len(others))
    assert one[1] <= expected(one[0], 1), "a draft makes a batch of one row one of several rows"


def expected(parted: int, runs: int) -> float:
    """Answers of one more run that differ, at most: three deviations above the rate of so many runs."""
    rate = (parted + 1) / (runs * ANSWERS + 2)
    return ANSWERS * rate + 3 * sqrt(ANSWERS * rate * (1 - rate) * (1 + 1 / runs))
