"""Whatever a draft model of another vocabulary drafts by text, the user reads the target's own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from opensled.core.messages import SamplingParams
from tests.fakes import IMPATIENT, Weather
from tests.five_tokenizers import TEXTS
from tests.system import ask, running
from tests.text_pairs import PAIRS, TextEngine, by_text, spelled, stubborn_answer
from verify_server.admission.session_manager import SessionLimits

STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)
PARAMS = SamplingParams(temperature=0.0, max_tokens=400)


def writer(prompt: Sequence[int], answer: Sequence[int]) -> Callable[[Sequence[int]], int]:
    """A target that writes `answer`."""
    return lambda context: answer[min(len(context) - len(prompt), len(answer) - 1)]


@pytest.mark.parametrize(("target", "draft"), PAIRS, ids=lambda name: name)
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_the_answer_is_the_targets_own(target, draft, weather):
    async def scenario():
        for kind, text in TEXTS.items():
            prompt, expected = stubborn_answer(target, text, breaks=kind == "emoji")
            drafter = by_text(target, draft, spelled(target, [*prompt, *expected[:-1]]))
            engine = TextEngine(target=writer(prompt, expected), family=target)
            limits = SessionLimits(linger=2.0)
            async with running(engine, draft_wait=0.5, weather=weather, limits=limits) as network:
                answer = await ask(network, prompt, drafter, PARAMS, patience=IMPATIENT)
            assert (answer.tokens, answer.finish_reason) == (expected, "eos"), kind
            drafted = sum(commit.accepted for commit in answer.commits)
            accepted.append(drafted / len(expected))

    accepted: list[float] = []
    asyncio.run(scenario())
    assert sum(accepted) / len(accepted) > (0 if weather.loss else 0.2), accepted
