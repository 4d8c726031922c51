"""Of hidden states the newest rows alone, as many as a device asks for: `Open.feature_rows`.

Run: pytest tests/test_newest_rows.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from opensled.features import FeatureRows
from opensled.messages import Open, SamplingParams
from opensled_testbed.reference import Reference
from scheduler.fcfs import Fcfs
from tests.fakes import IMPATIENT, Weather
from tests.system import CALM, ask, running
from tests.test_features import ALLOWED, LAYERS, PROMPTS, STORM, TOKENS, Listener, positions, states_of, step
from tests.test_features import engine as engine
from tests.test_features import reference as reference
from verify_server.acceptance.base import AcceptanceResult
from verify_server.engine.base import Segment
from verify_server.engine.torch_engine import TorchEngine
from verify_server.feature_log import FeatureLog


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_of_a_text_the_newest_row_alone_may_be_asked_for(
    engine: TorchEngine, reference: Reference, weather: Weather, temperature: float
) -> None:
    """Then each verdict has one, that of the position before its newest token; the text stays."""
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=3)
    asking = {"features": LAYERS, "feature_rows": 1, "patience": IMPATIENT if weather.loss else CALM}
    told: list[FeatureRows] = []

    class Newest(Listener):
        def features(self, rows: FeatureRows) -> None:
            super().features(rows)
            told.append(rows)

    async def answer() -> Newest:
        async with running(engine, policy=Fcfs(0.1), limits=ALLOWED, weather=weather) as network:
            drafter = Newest((*prompt, *truth))
            found = await ask(network, prompt, drafter, params, **asking)
            assert found.tokens == tuple(truth)
            return drafter

    prompt = tuple(reference.encode(PROMPTS[1]))
    truth = reference.generate(prompt, max_tokens=TOKENS, temperature=temperature, seed=3)[0]
    drafter = asyncio.run(answer())
    expected = states_of(reference, (*prompt, *truth))
    assert told and all(len(rows.positions) == 1 for rows in told)
    first = min(drafter.rows)
    assert first == len(prompt) - 1 if not weather.loss else first >= len(prompt) - 1
    for position, states in drafter.rows.items():
        most = np.abs(expected[position]).max(-1, keepdims=True)
        assert (np.abs(states - expected[position]) <= most / 127).all()


def test_of_what_a_step_computes_no_more_is_copied_than_was_asked_for() -> None:
    log = FeatureLog((1,), 4, known=300, asked=1)
    for start in range(0, 300, 100):
        assert len(step(log, Segment((7,) * 100, start, (0,), 0), 0, None)) == (start == 200)
    assert positions(log.tell()) == [299]
    assert list(step(log, Segment((7,) * (1 + 3), 300, (0,), 4), 0, AcceptanceResult(2, 9))) == [302]
    assert positions(log.tell()) == [302] and log.tell() == ()
    log.reopened(known=303)
    assert positions(log.tell()) == [302]


def test_who_asks_for_other_rows_on_a_new_stream_gets_these(
    engine: TorchEngine, reference: Reference
) -> None:
    prompt = tuple(reference.encode(PROMPTS[0]))
    message = Open(prompt, SamplingParams(temperature=0.0, max_tokens=4), features=LAYERS, feature_rows=1)

    async def reopened() -> None:
        async with running(engine, policy=Fcfs(0.0), limits=ALLOWED) as network:
            manager = network.manager
            session, opened = await manager.open(message, "local")
            outbox = manager.loop.attach(session, len(prompt))
            first = await outbox.get()
            assert positions(first.features) == [len(prompt) - 1]
            held = replace(
                message, noise_key=opened.noise_key, resume_token=opened.resume_token, committed=first.tokens
            )
            kept = session.features
            await manager.open(held, "local")
            assert session.features is kept
            await manager.open(replace(held, feature_rows=0), "local")
            assert session.features is not kept and session.features.asked == 0

    asyncio.run(reopened())
