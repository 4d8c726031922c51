"""Hidden states travel to the devices that may have them, by position, and no text changes for it.

Run: pytest tests/test_features.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from edge_client.drafters.none import NoneDrafter
from opensled.errors import InvalidRequest, Unsupported
from opensled.features import NEWEST, FeatureRows
from opensled.messages import Open, SamplingParams
from opensled.store import model_path
from opensled_testbed.reference import Reference
from relay.manager import RelayManager
from scheduler.fcfs import Fcfs
from tests.fakes import IMPATIENT, FakeEngine, OracleDrafter, Weather
from tests.system import CALM, ask, running
from verify_server.acceptance.base import AcceptanceResult
from verify_server.engine import torch_engine
from verify_server.engine.base import Segment
from verify_server.engine.torch_engine import TorchEngine
from verify_server.feature_access import FeatureAccess
from verify_server.feature_log import FeatureLog, FeatureWish, fulfil, told_by
from verify_server.security import TenantLimits, Tenants
from verify_server.session_manager import SessionLimits

LAYERS = (0, 2, 5)
ALLOWED = SessionLimits(linger=0.2, features=True)
STORM = Weather(loss=0.05, duplicate=0.1, reorder=0.1, seed=4)
PROMPTS = ("The river is", "The river is deep. A b c d a b c d", "def add(a, b):")
TOKENS = 16


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return torch_engine.load(
        str(model_path("tiny")), device="cpu", dtype="float64", kv_tokens=1024, numerics="fast"
    )


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(model_path("tiny"))


class Listener(OracleDrafter):
    """Drafts what the target says, wrong now and then, and keeps the rows that it is given."""

    def __init__(self, text: tuple[int, ...], acceptance: float = 0.7) -> None:
        """`text`: prompt and answer."""
        super().__init__(acceptance, target=lambda known: text[min(len(known), len(text) - 1)])
        self.rows: dict[int, np.ndarray] = {}

    def features(self, rows: FeatureRows) -> None:
        assert rows.layers == LAYERS
        for position, states in zip(rows.positions, rows.states()):
            known = self.rows.setdefault(position, states)
            assert np.allclose(known, states, atol=0.05 * np.abs(known).max()), "what comes twice is the same"


def states_of(reference: Reference, ids: tuple[int, ...]) -> np.ndarray:
    """[positions, layers, size], from plain transformers."""
    with torch.inference_mode():
        hidden = reference.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return np.stack([hidden[layer][0].float().numpy() for layer in LAYERS], axis=1)


@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_stays_and_rows_are_those_of_their_positions(
    engine: TorchEngine, reference: Reference, weather: Weather, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=TOKENS, seed=3)
    asking = {"features": LAYERS, "patience": IMPATIENT if weather.loss else CALM}

    async def answers() -> list[tuple[tuple[int, ...], tuple[int, ...], Listener]]:
        found = []
        async with running(engine, policy=Fcfs(0.1), limits=ALLOWED, weather=weather) as network:
            for prompt in [tuple(reference.encode(text)) for text in PROMPTS]:
                truth = reference.generate(prompt, max_tokens=TOKENS, temperature=temperature, seed=3)[0]
                drafter = Listener((*prompt, *truth))
                both = asyncio.gather(
                    ask(network, prompt, drafter, params, **asking),
                    ask(network, prompt, NoneDrafter(), params, patience=asking["patience"]),
                )
                with_rows, without = await both
                assert with_rows.tokens == without.tokens == tuple(truth)
                found.append((prompt, tuple(truth), drafter))
        return found

    for prompt, truth, drafter in asyncio.run(answers()):
        expected = states_of(reference, (*prompt, *truth))
        assert drafter.rows, "some of them arrive in any weather"
        if not weather.loss:  # then all of the prompt is there; the prefix cache holds no whole block of it
            assert set(range(len(prompt))) <= set(drafter.rows)
        for position, states in drafter.rows.items():
            most = np.abs(expected[position]).max(-1, keepdims=True)
            assert (np.abs(states - expected[position]) <= most / 127).all()


def test_the_drafter_hears_of_rows_before_the_tokens_behind_them(
    engine: TorchEngine, reference: Reference
) -> None:
    prompt = tuple(reference.encode(PROMPTS[0]))
    heard: list[bool] = []

    class Ordered(Listener):
        def features(self, rows: FeatureRows) -> None:
            super().features(rows)
            assert rows.positions.stop >= len(self.truth), "of tokens that are heard of next"

        def commit(self, tokens: Sequence[int]) -> None:
            super().commit(tokens)
            heard.append(len(self.truth) - 2 in self.rows)

    async def once() -> None:
        truth = reference.generate(prompt, max_tokens=TOKENS)[0]
        async with running(engine, policy=Fcfs(0.5), limits=ALLOWED) as network:
            params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
            await ask(network, prompt, Ordered((*prompt, *truth)), params, features=LAYERS)

    asyncio.run(once())
    assert heard and all(heard), "the row behind which it drafts is there"


REFUSALS = [
    (SessionLimits(linger=0.2), {}, "its operator can allow it"),
    (
        replace(ALLOWED, tenants=Tenants(default=TenantLimits(features=1))),
        {"features": (0, 99)},
        "last hidden state",
    ),
]


@pytest.mark.parametrize(("limits", "fields", "why"), REFUSALS)
def test_who_is_refused_them_gets_the_text_all_the_same(
    engine: TorchEngine, reference: Reference, caplog, limits: SessionLimits, fields: dict, why: str
) -> None:
    prompt = tuple(reference.encode(PROMPTS[0]))

    async def opened() -> None:
        async with running(engine, policy=Fcfs(0.0), limits=limits) as network:
            message = Open(prompt, SamplingParams(max_tokens=4), **{"features": LAYERS, **fields})
            with pytest.raises((Unsupported, InvalidRequest), match=why) as caught:
                await network.manager.open(message, "local")
            assert caught.value.field == "features" and not network.manager.remembered
            params = SamplingParams(temperature=0.0, max_tokens=4)
            asked = {"features": LAYERS, **fields}
            with caplog.at_level(logging.WARNING):
                answer = await ask(network, prompt, NoneDrafter(), params, **asked)
            assert answer.tokens == tuple(reference.generate(prompt, max_tokens=4)[0])
            assert "drafts without them" in caplog.text

    asyncio.run(opened())


def test_a_tenant_may_have_them_alone(engine: TorchEngine, reference: Reference) -> None:
    tenants = Tenants(limits={"local": TenantLimits(features=1)})
    prompt = tuple(reference.encode(PROMPTS[0]))

    async def opened() -> None:
        limits = SessionLimits(linger=0.2, tenants=tenants)
        async with running(engine, policy=Fcfs(0.0), limits=limits) as network:
            message = Open(prompt, SamplingParams(max_tokens=4), features=LAYERS)
            session, _ = await network.manager.open(message, "local")
            assert session.features is not None and session.features.layers == LAYERS
            with pytest.raises(Unsupported, match="its operator"):
                await network.manager.open(message, "others")

    asyncio.run(opened())


def test_an_engine_without_hidden_states_refuses_by_name() -> None:
    async def opened() -> None:
        async with running(FakeEngine(), limits=ALLOWED) as network:
            message = Open((1, 2), SamplingParams(max_tokens=4), features=LAYERS)
            with pytest.raises(Unsupported, match="--engine torch") as caught:
                await network.manager.open(message, "local")
            assert caught.value.field == "features"

    asyncio.run(opened())


def test_a_relay_gives_none_whatever_its_operator_allows() -> None:
    async def refused() -> None:
        async with running(FakeEngine(), limits=ALLOWED) as network:
            access = FeatureAccess(network.manager.loop, Tenants(), True, RelayManager._no_features)
            with pytest.raises(Unsupported, match="its own model is not the target"):
                await access.require(Open((1,), features=LAYERS), "local")
            await access.require(Open((1,)), "local")

    asyncio.run(refused())


def test_a_reader_who_comes_back_is_asked_anew(engine: TorchEngine, reference: Reference) -> None:
    prompt = tuple(reference.encode(PROMPTS[0]))
    message = Open(prompt, SamplingParams(temperature=0.0, max_tokens=4), features=LAYERS)

    async def reopened() -> None:
        async with running(engine, policy=Fcfs(0.0), limits=ALLOWED) as network:
            manager = network.manager
            session, opened = await manager.open(message, "local")
            outbox = manager.loop.attach(session, len(prompt))
            first = await outbox.get()
            assert positions(first.features) == list(range(len(prompt)))
            held = replace(
                message, noise_key=opened.noise_key, resume_token=opened.resume_token, committed=first.tokens
            )
            again, _ = await manager.open(held, "local")
            assert again is session and session.features is not None
            without, _ = await manager.open(replace(held, features=()), "local")
            assert without is session and session.features is None

    asyncio.run(reopened())


# -- the positions --------------------------------------------------------------------------------------------


class Counting:
    """Scores whose hidden state at a row of the step is the number of that row."""

    def features(self, layers: tuple[int, ...], rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        numbers = (np.array(rows) % 128).astype(np.int8)[:, None, None]
        return np.broadcast_to(numbers, (len(rows), len(layers), 4)), np.ones(
            (len(rows), len(layers)), np.float32
        )


def step(
    log: FeatureLog, segment: Segment, first_row: int, result: AcceptanceResult | None
) -> dict[int, int]:
    """By position the row of the step, of what a session has taken."""
    wish = log.wish(segment)
    fulfil([(wish, segment, first_row, result)], Counting())
    log.take(wish)
    return {row.position: row.data[0] for row in wish.rows}


def positions(runs: tuple[FeatureRows, ...]) -> list[int]:
    return [position for run in runs for position in run.positions]


def test_rows_are_of_what_stands_in_chains_and_trees() -> None:
    log = FeatureLog((1,), 4, known=10)
    assert step(log, Segment((7,) * 6, 0, (0,), 0), 3, None) == {p: 3 + p for p in range(6)}
    chain = Segment((7,) * (4 + 3), 6, (0,), 4)
    assert step(log, chain, 0, AcceptanceResult(2, 9)) == {6 + p: p for p in range(4 + 2)}
    tree = Segment((7,) * (1 + 5), 12, (0,), 6, parents=(-1, -1, 1, 2, 0))
    assert step(log, tree, 20, AcceptanceResult(2, 9, path=(1, 2))) == {12: 20, 13: 22, 14: 23}
    assert positions(log.tell()) == list(range(15)) and log.tell() == ()


def test_what_is_computed_once_more_is_not_sent_once_more() -> None:
    log = FeatureLog((1,), 4, known=10)
    step(log, Segment((7,) * 10, 0, (0,), 1), 0, AcceptanceResult(0, 9))
    log.tell()
    step(log, Segment((7,) * 11, 0, (0,), 1), 0, AcceptanceResult(0, 9))
    assert positions(log.tell()) == [10]


def test_what_the_prefix_cache_gave_is_missing() -> None:
    log = FeatureLog((1,), 4, known=40)
    step(log, Segment((7,) * 8, 32, (0,), 1), 0, AcceptanceResult(0, 9))
    assert positions(log.tell()) == list(range(32, 40))


def test_of_a_long_text_the_newest_rows_are_kept() -> None:
    log = FeatureLog((1,), 4, known=1000)
    for start in range(0, 1000, 100):
        step(log, Segment((7,) * 100, start, (0,), 0), 0, None)
    assert positions(log.tell()) == list(range(1000 - NEWEST, 1000))


def test_on_a_new_stream_what_may_be_lost_is_sent_once_more() -> None:
    log = FeatureLog((1,), 4, known=300)
    step(log, Segment((7,) * 300, 0, (0,), 1), 0, AcceptanceResult(0, 9))
    log.tell()
    log.reopened(known=280)
    assert positions(log.tell()) == list(range(279, 300))
    log.reopened(known=5)  # a device that has lost nearly all
    assert positions(log.tell()) == list(range(300 - NEWEST, 300))


def test_a_wish_of_an_earlier_stream_is_left(caplog) -> None:
    log = FeatureLog((1,), 4, known=3)
    log.take(FeatureWish((2,), 0, 1, rows=[None]))
    assert log.tell() == ()


def test_a_slow_reader_gets_tokens_first() -> None:
    log = FeatureLog((1,), 4, known=3)
    step(log, Segment((7,) * 3, 0, (0,), 1), 0, AcceptanceResult(0, 9))
    assert told_by(log, unread=60) == () and positions(told_by(log, unread=0)) == [0, 1, 2]
    assert told_by(None, 0) == ()
