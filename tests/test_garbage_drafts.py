"""A tenant whose devices send garbage, lies and drafts that are too long, in a flood, beside a tenant of good devices.

Over real gRPC, under policy `goodput`: his neighbour's words stay the target's own, and none of his rounds is refused.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest

from edge_client.link.link import GrpcStream, Link
from lab.testbed.soak.liar import SURE
from opensled.core.errors import OpenSledError
from opensled.core.messages import (
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    Open,
    Opened,
    SamplingParams,
    Verdict,
)
from scheduler.goodput.policy import Goodput
from tests.fakes import VOCAB, FakeEngine, OracleDrafter, continuation
from tests.mischief import SLOW_STEPS, Believes
from tests.serving import blocks_return, linked, serving
from tests.system import Answer, ask
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits, SessionManager

TENANTS = Tenants((("good-token", "good"), ("bad-token", "bad")))
MAX_DRAFT = 8
LONG = SamplingParams(temperature=0, max_tokens=100)
STEP_S = 0.01
FLOODS = 4  # streams of the bad tenant at a time
ANSWERS = 6  # of the good one


@dataclass(frozen=True)
class Flood:
    """What one stream sends over and over."""

    length: int = MAX_DRAFT
    vocab: int = VOCAB
    ahead: int = 0  # of what is committed
    counts: bool = True  # else every draft has the same number
    told: tuple[float, ...] = (1.0,)  # confidences of its tokens, each at random; 1 = it does not say
    branches: int = 0  # of a draft tree; 0 = chains


FLOODS_BY_NAME = {
    "garbage": Flood(),
    "too long": Flood(length=MAX_DRAFT + 1),
    "ids of no vocabulary": Flood(vocab=10 * VOCAB),
    "future bases": Flood(ahead=5),
    "one number": Flood(counts=False),
    "sure": Flood(told=(SURE,)),
    "any confidences": Flood(told=(0.0, 0.3, SURE, 1.0)),
    "sure trees": Flood(length=4 * MAX_DRAFT, told=(0.3, SURE), branches=4),
}


class Flooder:
    """One device of the bad tenant; opens a new sequence whenever one ends."""

    def __init__(self, link: Link, flood: Flood, seed: int) -> None:
        self._link, self._flood, self._random = link, flood, random.Random(seed)
        self.sent = 0

    async def run(self) -> None:
        while True:
            stream = self._link.connect()
            with suppress(OpenSledError):
                await self._sequence(stream)
            await stream.close()

    async def _sequence(self, stream: GrpcStream) -> None:
        prompt = tuple(self._random.randrange(1, 40) for _ in range(4))
        await stream.send(Open(prompt, LONG))
        opened = await stream.receive()
        if not isinstance(opened, Opened):
            return
        self._length, self._over = len(opened.prompt_ids), False
        reading = asyncio.ensure_future(self._read(stream))
        try:
            for counter in range(1, 10_000):
                if reading.done():
                    return
                await stream.send(self._draft(counter if self._flood.counts else 1))
                self.sent += 1
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _draft(self, counter: int) -> Draft:
        flood = self._flood
        ids = [self._random.randrange(flood.vocab) for _ in range(flood.length)]
        tokens = tuple(DraftToken(id, self._random.choice(flood.told)) for id in ids)
        parents = tuple(max(-1, index - flood.branches) for index in range(flood.length))
        base = self._length + flood.ahead
        return Draft(counter, DraftBlock(base, tokens, parents if flood.branches else ()))

    async def _read(self, stream: GrpcStream) -> None:
        """Until the sequence is over, well or badly."""
        while True:
            message = await stream.receive()
            if isinstance(message, Verdict):
                self._length = max(self._length, message.base + len(message.tokens))
            if isinstance(message, Failure) or (isinstance(message, Verdict) and message.finish_reason):
                return


class PacedEngine(FakeEngine):
    """Steps that take their time, so that a draft is there for one of the next, however busy the machine is."""

    def forward(self, segments):
        time.sleep(STEP_S)
        return super().forward(segments)


async def answers_of_the_good(address: str, prompts: list[list[int]]) -> list[Answer]:
    """All at once, each on a device of its own that drafts well."""
    async with linked(address, token="good-token") as link:
        asked = [
            ask(link, prompt, OracleDrafter(0.8, number), SamplingParams(temperature=0, max_tokens=60))
            for number, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*asked)


async def beside(flood: Flood) -> tuple[list[Answer], list[Flooder], SessionManager]:
    """The good tenant's answers while the flood lasts."""
    limits = SessionLimits(max_sessions=32, max_draft=MAX_DRAFT, linger=0.05)
    policy = Believes(Goodput(0.05), SLOW_STEPS)
    engine = PacedEngine(num_blocks=800)
    async with (
        serving(TENANTS, limits=limits, engine=engine, policy=policy) as (manager, address),
        AsyncExitStack() as stack,
    ):
        links = [await stack.enter_async_context(linked(address, token="bad-token")) for _ in range(FLOODS)]
        flooders = [Flooder(link, flood, seed) for seed, link in enumerate(links)]
        floods = [asyncio.ensure_future(flooder.run()) for flooder in flooders]
        prompts = [[number, 2, 3] for number in range(1, ANSWERS + 1)]
        answers = await answers_of_the_good(address, prompts)
        for task in floods:
            task.cancel()
        ended = await asyncio.gather(*floods, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
        await stack.aclose()
        await blocks_return(manager)
    return answers, flooders, manager


@pytest.mark.parametrize("name", FLOODS_BY_NAME)
def test_a_flood_changes_no_word_of_a_neighbour_and_refuses_him_no_round(name: str) -> None:
    answers, flooders, manager = asyncio.run(beside(FLOODS_BY_NAME[name]))
    for number, answer in enumerate(answers, 1):
        assert list(answer.tokens) == continuation([number, 2, 3], 60)
        assert answer.reopened == 0
    rounds = [round for answer in answers for round in answer.rounds]
    assert rounds and sum(round.accepted for round in rounds) > len(rounds) / 2
    assert all(flooder.sent for flooder in flooders)
    refused = manager.loop.machine.stats.failures
    assert bool(refused["invalid_request"]) == (name in ("too long", "ids of no vocabulary"))
    assert not refused["unsupported"]
