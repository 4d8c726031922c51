"""vLLM as it comes verifies drafts from outside: the same texts in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.stock import DEVICES, LLM, LONGEST, ask, load

TINY = Path(__file__).resolve().parents[2] / "models/tiny"
QUESTIONS = ("What is the capital of France?", "Write a haiku about rain.", "List five fruits.")
TOKENS = 36


@pytest.fixture(scope="module")
def tiny() -> Iterator[LLM]:
    llm = load(TINY)
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(autouse=True)
def nobody_drafts() -> Iterator[None]:
    yield
    DEVICES.known, DEVICES.right, DEVICES.late = {}, 1.0, 0.0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_change_the_steps_and_not_the_text(tiny: LLM, temperature: float) -> None:
    plain, _, most = ask(tiny, QUESTIONS, TOKENS, temperature)
    longest = max(map(len, plain.values()))
    assert len(plain) == len(QUESTIONS) and longest <= most <= longest + 1
    DEVICES.known, steps = plain, {}
    for right, late in ((1.0, 0.0), (0.7, 0.0), (0.0, 0.0), (0.7, 0.4)):
        DEVICES.right, DEVICES.late = right, late
        answers, _, steps[right, late] = ask(tiny, QUESTIONS, TOKENS, temperature)
        assert answers == plain, (right, late)
    assert steps[1.0, 0.0] <= -(-longest // (LONGEST + 1)) + 2
    assert steps[1.0, 0.0] < steps[0.7, 0.0] < most
    assert most <= steps[0.0, 0.0] <= most + 1
