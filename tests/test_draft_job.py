"""One drafting job, three drivers: the thread in real time, the emulation and the simulation in the profile's time.

All draft the same recorded item. Blocks, seconds, wasted tokens and all that a policy is asked must be the same.
"""

import asyncio
import random
from types import SimpleNamespace

import pytest

from edge_client.drafters.base import Drafter
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.round import drafting
from edge_client.round.draft_job import BlockBudget, Drafted, DraftJob
from edge_client.round.drafting import DraftThread, run_to_end
from lab.testbed.emulation.draft_pace import forward_s
from lab.testbed.emulation.recorded_model import RecordedModel
from lab.testbed.emulation.replay import ReplayDrafts
from lab.testbed.load.records import RequestRecord
from lab.testbed.simulated.drafting import SimulatedDrafts
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.sequences import Script
from lab.testbed.traces import ItemTrace
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler
from tests.by_hand import HandLoop
from tests.emulated import speed, steady

GREEDY = Sampler(SamplingParams(temperature=0), bytes(16))
PACE = speed(10, 25)  # so that the prompt, and the news after a rest, take longer than a token
LONG = 100.0  # seconds in which any work ends


class Listening(ConfidenceLength):
    """Writes down what it is asked."""

    def __init__(self, length: int, confidence: float) -> None:
        super().__init__(length, confidence=confidence)
        self.__dict__["heard"] = []

    def most(self, limit, hint=None):
        self.heard.append(limit)
        return super().most(limit, hint)


class Driver:
    """One device; `truth` is told to it at a pass of the model where `at_pass` says so."""

    def __init__(self, trace: ItemTrace, policy: Listening) -> None:
        self.policy, self.trace = policy, trace
        self.truth, self.place = Truth(trace.prompt_ids), 0  # tokens of the text that it was told
        self.passes, self.at_pass = 0, {}

    def passed(self) -> None:
        self.passes += 1
        if self.passes in self.at_pass:
            self.hear(self.at_pass[self.passes])

    def budget(self, place: int) -> BlockBudget:
        return BlockBudget(max(0, len(self.trace.target_ids) - place - 1))

    def hear(self, place: int) -> None:
        self.place, self.truth.tokens[:] = place, (*self.trace.prompt_ids, *self.trace.target_ids[:place])
        self.drafts.hear(self.truth)

    @property
    def wasted(self) -> int:
        return self.drafts.wasted


class Threaded(Driver):
    """The product, on a clock that the model moves."""

    def __init__(self, trace, policy, monkeypatch) -> None:
        super().__init__(trace, policy)
        self.loop, self.now = asyncio.new_event_loop(), 0.0
        monkeypatch.setattr(drafting, "time", SimpleNamespace(monotonic=lambda: self.now))
        model = RecordedModel(self.spend)
        model.trace = trace
        self.drafts = DraftThread(model, policy)
        self.drafts.begin(self.truth, GREEDY)

    def spend(self, tokens: int) -> None:
        self.now += forward_s(PACE, tokens)

    def draft(self, place: int) -> Drafted:
        async def drafted() -> Drafted:
            return await self.drafts.draft(self.truth, self.budget(place))

        return self.loop.run_until_complete(drafted())

    def work_ahead(self, drafted: Drafted, place: int) -> None:
        async def ahead() -> None:
            self.drafts.look_ahead(drafted.block, self.budget(place))
            await self.loop.run_in_executor(self.drafts._thread, len, ())  # behind all of its work

        self.loop.run_until_complete(ahead())

    def close(self) -> None:
        self.drafts.close()
        self.loop.close()


class Emulated(Driver):
    def __init__(self, trace, policy, monkeypatch) -> None:
        super().__init__(trace, policy)
        self.loop = HandLoop()
        asyncio.set_event_loop(self.loop)
        self.drafts = ReplayDrafts({trace.prompt_ids: trace}, PACE, policy, looks_ahead=True)
        self.drafts.begin(self.truth, GREEDY)

    def asked(self, call, *arguments):
        async def ask():
            return call(*arguments)

        result = self.loop.run_until_complete(ask())
        while self.loop._scheduled:
            self.loop.advance(max(0.0, self.loop._scheduled[0]._when - self.loop.now))
        return result

    def draft(self, place: int) -> Drafted:
        return self.asked(self.drafts.draft, self.truth, self.budget(place)).result()

    def work_ahead(self, drafted: Drafted, place: int) -> None:
        self.asked(self.drafts.look_ahead, drafted.block, self.budget(place))

    def close(self) -> None:
        asyncio.set_event_loop(None)
        self.loop.close()


class Simulated(Driver):
    def __init__(self, trace, policy, monkeypatch) -> None:
        super().__init__(trace, policy)
        self.events = Events()
        self.drafts = SimulatedDrafts(self.events, PACE, policy, True)
        script = Script(trace, len(trace.target_ids))
        self.drafts.take(script, RequestRecord(0, 0, trace.item, 0.0), lambda: None)
        self.drafts.begin(self.truth, GREEDY)

    def draft(self, place: int) -> Drafted:
        ready = self.drafts.draft(self.truth, self.budget(place))
        self.events.run(self.events.now + LONG)
        return ready.result()

    def work_ahead(self, drafted: Drafted, place: int) -> None:
        self.drafts.look_ahead(drafted.block, self.budget(place))
        self.events.run(self.events.now + LONG)

    def close(self) -> None:
        """Nothing to close."""


def whole_text(kind, trace: ItemTrace, seed: int, monkeypatch) -> tuple:
    """Each block with its seconds and the tokens wasted so far, and what the policy was asked."""
    chance = random.Random(seed)
    policy = Listening(chance.randint(1, 8), chance.choice((0.0, 0.5)))
    driver = kind(trace, policy, monkeypatch)
    forward = RecordedModel.forward

    def counted(self, tokens, start):
        logits = forward(self, tokens, start)
        driver.passed()
        return logits

    with monkeypatch.context() as patched:
        patched.setattr(RecordedModel, "forward", counted)
        found, end = [], len(trace.target_ids)
        while driver.place < end:
            base = driver.place
            # The server decodes a token or two by itself, while a pass is under way
            if chance.random() < 0.3:
                driver.at_pass = {driver.passes + chance.randint(1, 2): min(end, base + chance.randint(1, 2))}
            drafted, driver.at_pass = driver.draft(base), {}
            tokens = len(drafted.block.tokens)
            right = trace.right(base, tokens)
            if driver.place <= base + right and chance.random() < 0.7:
                driver.work_ahead(drafted, base + tokens + 1)
            driver.hear(min(end, max(driver.place, base + right + 1)))
            found.append((drafted.block, pytest.approx(drafted.seconds), driver.wasted))
    driver.close()
    return found, policy.heard


@pytest.mark.parametrize("seed", range(12))
def test_all_drivers_draft_the_same(seed, monkeypatch):
    trace = steady(seed, (0.6, 0.8, 0.95)[seed % 3])
    product, emulated, simulated = (
        whole_text(kind, trace, seed, monkeypatch) for kind in (Threaded, Emulated, Simulated)
    )
    assert len(product[1]) > len(product[0]) > 3, "it is asked for what is drafted ahead, too"
    assert emulated == product
    assert simulated == product


class Says(Drafter):
    """Proposes what it is given; `ready` of it costs nothing."""

    def __init__(self, count: int, ready: int) -> None:
        self.tokens, self._ready = [DraftToken(id) for id in range(count)], ready

    def begin(self, prompt, sampler) -> None: ...

    def commit(self, tokens) -> None: ...

    def propose(self):
        return iter(self.tokens)

    @property
    def ready(self) -> int:
        return self._ready


@pytest.mark.parametrize(
    ("ready", "length", "count", "yields"),
    [(0, 0, 9, 0), (0, 3, 9, 5), (3, 3, 9, 0), (2, 4, 9, 4), (4, 2, 9, 0), (1, 5, 2, 3)],
)
def test_work_yields_before_the_first_pass_and_after_each_one(ready, length, count, yields):
    """What is ready needs none; the last pass may find that there is nothing more."""
    work = DraftJob(Says(count, ready), FixedLength(length), 0).draft((), BlockBudget(9))
    seen = 0
    try:
        next(work)
        while True:
            seen += 1
            work.send(float(seen))
    except StopIteration as end:
        assert seen == yields
        assert len(end.value.block.tokens) == min(length, count)
        assert end.value.seconds == max(0, seen - 1)


@pytest.mark.parametrize(
    ("length", "least", "room", "drafted"),
    [(2, 6, 9, 6), (2, 6, 4, 4), (8, 6, 9, 8), (0, 6, 9, 0), (3, 0, 9, 3)],
)
def test_a_rule_that_needs_long_chains_gets_them_or_none(length, least, room, drafted):
    """Whatever the policy thinks of single tokens before that length is reached."""

    class Doubts(FixedLength):
        def goes_on(self, index):
            return index < length

        def belongs(self, token, index):
            return index < length

    work = DraftJob(Says(9, 0), Doubts(length), 0).draft((), BlockBudget(room, least=least))
    assert len(run_to_end(work).block.tokens) == drafted


def test_a_job_that_is_over_does_no_more_work():
    job = DraftJob(Says(5, 0), FixedLength(5), 0)
    work = job.draft((), BlockBudget(9))
    next(work)
    work.send(0.0)
    job.interrupt()
    work.send(1.0)
    with pytest.raises(StopIteration) as end:
        work.send(1.0)
    assert len(end.value.value.block.tokens) == 1
    assert not run_to_end(job.draft((), BlockBudget(9))).block.tokens
