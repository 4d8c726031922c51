"""Whatever a draft model of another vocabulary drafts by text, the user reads the target's own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from opensled.core.messages import SamplingParams
from tests.fakes import IMPATIENT, Weather
from tests.five_tokenizers import TEXTS
from tests.system import CALM, FOREVER, Answer, ask, running
from tests.text_pairs import PAIRS, Rounds, TextEngine, by_text, draft_through, spelled, stubborn_answer
from verify_server.admission.session_manager import SessionLimits

STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)
PARAMS = SamplingParams(temperature=0.0, max_tokens=400)


def writer(prompt: Sequence[int], answer: Sequence[int]) -> Callable[[Sequence[int]], int]:
    """A target that writes `answer`."""
    return lambda context: answer[min(len(context) - len(prompt), len(answer) - 1)]


@pytest.mark.parametrize(("target", "draft"), PAIRS, ids=lambda name: name)
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_the_answer_is_the_targets_own(target, draft, weather):
    alone, linked = Rounds(), Rounds()

    async def scenario():
        for kind, text in TEXTS.items():
            prompt, expected = stubborn_answer(target, text, breaks=kind == "emoji")
            known = spelled(target, [*prompt, *expected[:-1]])
            engine = TextEngine(target=writer(prompt, expected), family=target)
            waits, patience = (0.5, IMPATIENT) if weather.loss else (FOREVER, CALM)
            async with running(
                engine, draft_wait=waits, weather=weather, limits=SessionLimits(linger=2.0)
            ) as network:
                drafter = by_text(target, draft, known)
                answers.append(await ask(network, prompt, drafter, PARAMS, patience=patience))
            assert (answers[-1].tokens, answers[-1].finish_reason) == (expected, "eos"), kind
            rounds = answers[-1].rounds
            linked.add(Rounds([each.accepted for each in rounds], [each.drafted for each in rounds]))
            if not weather.loss:
                alone.add(draft_through(by_text(target, draft, known), prompt, expected, block=4, ahead=True))

    answers: list[Answer] = []
    asyncio.run(scenario())
    if weather.loss:
        assert any(answer.reopened for answer in answers)
    else:
        # After an empty draft the server writes on until the next comes, so the machine's pace decides where drafts
        # begin. It does not decide how many of their tokens are right.
        assert linked.share > alone.share / 2 > 0.08, (linked, alone)
