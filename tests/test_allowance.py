"""What a tenant's quota and a device's acceptance buy: drafts that are looked at. Nobody's answer depends on it."""

import asyncio
import random
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import GrpcStream, Link
from lab.testbed.soak.liar import SURE
from opensled.core.errors import OpenSledError, Overloaded
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
from scheduler.estimates import GUESS, DeviceBook
from scheduler.goodput.policy import Goodput
from scheduler.plan import Slice
from tests.fakes import VOCAB, FakeEngine, OracleDrafter, continuation
from tests.loops import cancelled
from tests.mischief import SLOW_STEPS, Believes
from tests.serving import blocks_return, linked, serving
from tests.sessions import Bench
from tests.system import Answer, ask, running
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.round.budget import (
    BURST,
    EVIDENCE,
    MAX_DEVICES,
    PROBE,
    RESUMED,
    RETURN,
    DraftBudget,
    DraftRecord,
    DraftRecords,
    Quota,
)
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.offer import DraftLimits

WRONG = (9, 9, 9, 9)
PARAMS = SamplingParams(temperature=0, max_tokens=150)


# -- quotas -----------------------------------------------------------------------------------------------------


def test_a_quota_can_be_saved_up_and_spent_at_once():
    quota = Quota(10, now=0.0)
    assert quota.tokens_left(0.0) == quota.tokens_left(100.0) == BURST * 10
    quota.take(19, 100.0)
    assert quota.tokens_left(100.0) == 1 and quota.wait(100.0) == 0


def test_an_exhausted_quota_is_good_again_when_some_has_come_together():
    quota = Quota(10, now=0.0)
    quota.take(20, 0.0)
    assert quota.tokens_left(0.0) == quota.tokens_left(RESUMED - 0.01) == 0
    assert quota.wait(0.1) == pytest.approx(RESUMED - 0.1)
    assert quota.tokens_left(RESUMED + 0.001) == 6 and quota.wait(RESUMED + 0.001) == 0


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 16)), max_size=200))
def test_no_more_is_verified_than_the_quota_and_one_burst(per_second, drafts):
    quota, now, verified = Quota(per_second, 0.0), 0.0, 0
    for pause, wanted in drafts:
        now += pause
        tokens = min(wanted, quota.tokens_left(now))
        quota.take(tokens, now)
        verified += tokens
        assert verified <= per_second * now + max(1, BURST * per_second) + 1


async def test_quotas_of_tenants_do_not_touch_each_other():
    tenants = Tenants(limits={"a": TenantLimits(positions_per_s=1)})
    async with running(FakeEngine(), limits=SessionLimits(linger=0.2, tenants=tenants)) as network:
        manager = network.manager
        manager._quotas.of("a").take(2, manager.loop.clock())
        with pytest.raises(Overloaded, match="quota of your tenant") as error:
            await manager.open(Open((1, 2), PARAMS), "a")
        assert 0 < error.value.retry_after <= 1
        session, _ = await manager.open(Open((1, 2), PARAMS), "b")
        assert session.sources.device.budget.quota is None


# -- one session ------------------------------------------------------------------------------------------------


def record(drafts, gains=0):
    found = DraftRecord()
    for number in range(drafts):
        found.add(1, accepted=int(number < gains))
    return found


def test_a_device_is_hopeless_only_after_many_drafts():
    assert DraftBudget(record=record(EVIDENCE + 4), floor=0.05).longest(8, 10, 0.0) == 0
    assert DraftBudget(record=record(EVIDENCE - 1), floor=0.05).longest(8, 10, 0.0) == 8
    assert DraftBudget(record=record(100, gains=90), floor=0.05).longest(8, 10, 0.0) == 8
    assert DraftBudget(record=record(100)).longest(8, 10, 0.0) == 8  # without a floor


def test_one_draft_of_a_hopeless_device_is_looked_at_now_and_then():
    allowance = DraftBudget(record=record(100), floor=0.05)
    looked_at = []
    for length in range(10, 10 + 3 * PROBE):
        tokens = allowance.longest(8, length, 0.0)
        allowance.take(tokens, length, 0.0)
        looked_at += [length] if tokens else []
    assert looked_at == [PROBE, 2 * PROBE, 3 * PROBE]


def test_a_device_that_has_become_better_is_heard_again():
    allowance = DraftBudget(record=record(1000), floor=0.05)
    for _ in range(3):
        assert allowance.longest(8, 10, 0.0) == 0
        allowance.add_verdict(8, 3, 4)
    assert allowance.longest(8, 10, 0.0) == 8


def test_devices_are_known_by_name_and_nameless_ones_by_their_tenant():
    records = DraftRecords(lambda: 0.0)
    assert records.of("a", "kitchen") is records.of("a", "kitchen") is not records.of("b", "kitchen")
    assert records.of("a", "") is records.of("a", "") is not records.of("b", "")
    first = records.of("a", "0")
    for number in range(MAX_DEVICES):
        records.of("a", str(number + 1))
    assert records.of("a", "0") is not first


def test_a_device_is_told_to_rest_and_to_go_on_whatever_the_policy():
    allowance = DraftBudget()
    assert allowance.hint(None, 8) is None and allowance.hint(5, 8) == 5 and allowance.hint(5, 3) == 3
    assert allowance.hint(None, 0) == allowance.hint(5, 0) == 0
    assert allowance.hint(None, 8) == RETURN  # it rested for lack of an allowance
    assert allowance.hint(None, 8) is None
    assert allowance.hint(5, 0) == 0 and allowance.hint(0, 8) == 0  # this one rests by the policy's advice


def test_a_draft_beyond_the_quota_is_not_computed_and_its_reader_is_served():
    bench = Bench()
    bench.session.sources.device.budget = DraftBudget(Quota(1, 0.0))
    bench.step()
    bench.draft(*bench.right(4))
    assert len(bench.step().tokens) == 3  # two were left
    expected = bench.right(1)
    before = bench.engine.computed
    bench.draft(*bench.right(4))
    assert bench.session.view(0.0).device.longest == 0
    verdict = bench.step()
    assert verdict.tokens == tuple(expected) and verdict.hint == 0 and verdict.answers == 2
    assert bench.engine.computed == before + 1


# -- the whole server -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, Goodput(0.05)], ids=["fcfs", "goodput"])
async def test_an_answer_survives_its_tenants_quota(policy):
    tenants = Tenants(default=TenantLimits(positions_per_s=20))
    engine = FakeEngine()
    limits = SessionLimits(linger=0.2, tenants=tenants)
    async with running(engine, draft_wait=0.05, policy=policy, limits=limits) as network:
        started = time.monotonic()
        answer = await ask(network, (3, 1, 4), OracleDrafter(0.9), PARAMS, stop=FixedLength(8))
        assert list(answer.tokens) == continuation((3, 1, 4), 150)
        # The rest is what plain decoding computes; some of it was drafted
        drafted = engine.computed - (3 + 149)
        assert drafted <= 20 * (BURST + time.monotonic() - started) + 1


@pytest.mark.parametrize("policy", [None, Goodput(0.05)], ids=["fcfs", "goodput"])
async def test_garbage_drafts_buy_nothing(policy):
    """A device whose drafts are always wrong: soon the target computes hardly a position for them."""

    class Garbage(OracleDrafter):
        def propose(self):
            yield from (token._replace(id=1 + token.id % 40) for token in super().propose())

    engine = FakeEngine(context_length=1000, num_blocks=300)
    async with running(engine, draft_wait=0.02, policy=policy) as network:
        params = SamplingParams(temperature=0, max_tokens=600)
        for prompt in ((3, 1, 4), (1, 5, 9)):
            answer = await ask(network, prompt, Garbage(0.0), params, stop=FixedLength(4), device="bad")
            assert list(answer.tokens) == continuation(prompt, 600)
        # Drafts until the device is known, then one in PROBE tokens; without a floor some 4,800 positions.
        assert engine.computed - 1200 <= 4 * (2 * EVIDENCE + 1200 / PROBE) + 20


@pytest.mark.parametrize("advice", [None, 0, 3])
def test_a_rest_of_an_earlier_answer_ends(advice):
    """Seen: one draft that was never timed, a hint of 0, and no policy that knew enough to ask again."""
    limits, known = DraftLimits(100, 8), DeviceBook()
    known.of("", "kitchen").device.hint = 0
    drafts = DeviceDrafts(known.of("", "kitchen"))
    hint = drafts.hint(Slice(1, 1, True, hint=advice), limits, 9, 0.0)
    assert drafts.turn.hint == 0 and hint == (RETURN if advice is None else advice)


@pytest.mark.parametrize("answers", [1, 2])
def test_a_device_whose_drafts_are_always_late_is_known_by_its_own_word(answers):
    """By its second one: the first may have followed the reading of the text."""
    book = DeviceBook()
    drafts = DeviceDrafts(book.of("", "kitchen"))
    for number in range(2):
        assert not drafts.estimate.drafts
        drafts.receive(Draft(drafts.turn.latest + 1, DraftBlock(9, (DraftToken(1),) * 4), 2.0), 50.0)
        if answers == 2 and not number:
            drafts.estimate.device.hint = 0
            drafts = DeviceDrafts(book.of("", "kitchen"))
    assert drafts.estimate.drafts == 1 and drafts.estimate.forecast.draft_s > 2 * GUESS.draft_s


# -- garbage ------------------------------------------------------------------------------------------------------


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
            await cancelled(reading)

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
    # So slow that a draft is there for one of the next steps, however busy the machine is
    engine = FakeEngine(num_blocks=800, before=lambda segments: time.sleep(STEP_S))
    async with (
        serving(TENANTS, limits=limits, engine=engine, policy=policy) as (manager, address),
        AsyncExitStack() as stack,
    ):
        links = [await stack.enter_async_context(linked(address, token="bad-token")) for _ in range(FLOODS)]
        flooders = [Flooder(link, flood, seed) for seed, link in enumerate(links)]
        floods = [asyncio.ensure_future(flooder.run()) for flooder in flooders]
        prompts = [[number, 2, 3] for number in range(1, ANSWERS + 1)]
        answers = await answers_of_the_good(address, prompts)
        ended = await cancelled(*floods)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
        await stack.aclose()
        await blocks_return(manager)
    return answers, flooders, manager


@pytest.mark.parametrize("name", FLOODS_BY_NAME)
def test_a_flood_changes_no_word_of_a_neighbour_and_refuses_him_no_round(name):
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
