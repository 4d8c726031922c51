"""A relay over fakes: the text is the top target's, whatever the relay's model says."""

import asyncio
import random

import pytest

from tests.fakes import VOCAB, FakeEngine, OracleDrafter, Weather, continuation, next_token
from tests.system import ask
from tests.three_tiers import IMPATIENT, tiers

STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=5)


def errs(share, seed=0):
    """A target that is another one than `next_token` at a share of all contexts."""

    def token(context):
        own = next_token(context)
        lot = random.Random(hash((seed, tuple(context)))).random()
        return own if lot >= share else 1 + (own + 3) % (VOCAB - 3)

    return token


@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_text_is_the_top_targets(share, weather):
    async def scenario():
        middle = FakeEngine(target=errs(share))
        async with tiers(FakeEngine(), middle, weather=weather, above=weather) as (network, _, _):
            asked = [
                ask(network, [3, 1, 4, seed], OracleDrafter(0.7, seed), patience=IMPATIENT)
                for seed in range(1, 6)
            ]
            for seed, answer in enumerate(await asyncio.gather(*asked), 1):
                assert list(answer.tokens) == continuation([3, 1, 4, seed], 40)

    asyncio.run(scenario())
