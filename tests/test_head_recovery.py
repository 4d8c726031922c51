"""Draft heads after a prefix hit, a lost stream, and on another server: drafts are those of a fresh session."""

from __future__ import annotations

import pytest

from edge_client.drafters.none import NoneDrafter
from lab.testbed.reference import Reference
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from tests.fakes import IMPATIENT, Weather
from tests.system import ask, running
from tests.test_head_drafters import DRAFTERS, FOUR, LONG, agree, beside, fresh_engine
from verify_server.engine.torch.kv_memory import BLOCK_SIZE

WARM = SamplingParams(temperature=0.8, max_tokens=12, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    found, _ = Reference(model_path("tiny")).generate(LONG, temperature=0.8, max_tokens=12, seed=5)
    return found


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_after_a_prefix_hit(kind: str, expected: list[int]) -> None:
    engine = fresh_engine()
    recorder, told = beside(engine, kind)
    async with running(engine, drafter=recorder, policy=FOUR) as network:
        first = await ask(network, LONG, NoneDrafter(), WARM)
        loop = network.manager.loop
        computed, asked = loop.machine.stats.positions, len(recorder.seen)
        second = await ask(network, LONG, NoneDrafter(), WARM)
        again = loop.machine.stats.positions - computed
    assert list(first.tokens) == list(second.tokens) == expected
    assert again == computed - 2 * BLOCK_SIZE, "all else is the same: two blocks of the prompt were there"
    recorder.seen = recorder.seen[asked:]
    agree(told, recorder)


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_over_a_link_that_loses_streams(kind: str, expected: list[int]) -> None:
    engine = fresh_engine()
    recorder, told = beside(engine, kind)
    weather = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)
    async with running(engine, drafter=recorder, policy=FOUR, weather=weather) as network:
        assert list((await ask(network, LONG, NoneDrafter(), WARM, patience=IMPATIENT)).tokens) == expected
    agree(told, recorder)


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_on_another_server_the_head_reads_all_of_the_text(kind: str, expected: list[int]) -> None:
    """What a device sends to a server that takes over: prompt, what is committed, and the same seed."""
    engine = fresh_engine()
    recorder, told = beside(engine, kind)
    async with running(engine, drafter=recorder, policy=FOUR) as network:
        assert (
            list((await ask(network, LONG, NoneDrafter(), WARM, committed=tuple(expected[:5]))).tokens)[-7:]
            == expected[-7:]
        )
    assert min(one.length for one, _ in recorder.seen) > len(LONG) + 5
    agree(told, recorder)
