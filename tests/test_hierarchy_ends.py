"""Where an answer ends is the top target's word too: a relay's model may have other ends, or a longer context."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from opensled.core.messages import SamplingParams
from tests.fakes import EOS, FakeEngine, OracleDrafter, continuation
from tests.system import ask
from tests.test_hierarchy import errs
from tests.three_tiers import IMPATIENT, tiers

PROMPT = [3, 1, 4]
TEXT = continuation(PROMPT, 40)
GREEDY = SamplingParams(temperature=0, max_tokens=40)


@dataclass
class EndingEngine(FakeEngine):
    """A target with further ends."""

    ends: tuple[int, ...] = ()

    @property
    def info(self):
        return replace(super().info, eos_ids=(EOS, *self.ends))


def answer(top, middle):
    async def scenario():
        async with tiers(top, middle) as (network, _, _):
            return await ask(network, PROMPT, OracleDrafter(0.7), GREEDY, patience=IMPATIENT)

    return asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("place", [0, 3, 8, 21])
def test_an_end_of_the_relays_model_alone_ends_nothing(place, share):
    found = answer(FakeEngine(), EndingEngine(ends=(TEXT[place],), target=errs(share)))
    assert list(found.tokens) == TEXT and found.finish_reason == "length"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("place", [0, 3, 8, 21])
def test_an_end_of_the_top_target_alone_ends_the_answer(place, share):
    found = answer(EndingEngine(ends=(TEXT[place],)), FakeEngine(target=errs(share)))
    assert list(found.tokens) == TEXT[: TEXT.index(TEXT[place]) + 1] and found.finish_reason == "eos"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("top", "middle"), [(30, 200), (200, 30), (30, 30)])
def test_the_shorter_context_ends_it(top, middle, share):
    found = answer(FakeEngine(context_length=top), FakeEngine(context_length=middle, target=errs(share)))
    assert list(found.tokens) == TEXT[: 30 - len(PROMPT)] and found.finish_reason == "length"
