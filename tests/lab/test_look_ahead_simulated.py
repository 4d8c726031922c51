"""Drafting ahead, simulated against emulated: the product's edge loop over replayed drafts, on a clock that is moved.

Both face the same made-up server, which decodes until a draft comes and then waits. Every block they send must be the
same one, and leave at the same time.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.round.generate import generate
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.replay import ReplayDrafts
from lab.testbed.fleet import read_fleet
from lab.testbed.load.records import RequestRecord
from lab.testbed.simulated.device import SimulatedDevice
from lab.testbed.simulated.drafting import SimulatedDrafts
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.links import ways
from lab.testbed.simulated.sequences import scripts
from lab.testbed.simulated.server import MAX_DRAFT
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.errors import UsageError
from opensled.core.messages import Draft, Limits, SamplingParams, Verdict
from opensled.core.protocol import Truth, common_prefix
from opensled.core.turns import Turn
from tests.by_hand import HandLoop
from tests.emulated import speed, steady

Sent = tuple[float, int, int, float]  # when a block was sent, its base in the text, its tokens, its seconds


@dataclass
class Waits:
    """A server of one sequence, in lengths: `at` calls after some seconds, `tell` sends a verdict."""

    length: int
    step_s: float
    at: Callable[[float, Callable[[], None]], object]
    tell: Callable[[int, int, object], None]  # base, end, the draft it answers
    committed: int = 0
    server_drives: bool = True

    def start(self) -> None:
        self.at(self.step_s, self._tick)

    def _tick(self) -> None:
        if self.committed >= self.length:
            return
        if self.server_drives:
            self._commit(1, self.committed, None)
        self.start()

    def submit(self, base: int, tokens: int, reach: int, draft: object) -> None:
        self.server_drives = not tokens
        if not tokens:
            return
        if self.committed - base > reach:
            self.at(self.step_s / 7, lambda: self.tell(base, self.committed, draft))
            return
        self.at(self.step_s, lambda: self._commit(base + reach + 1 - self.committed, base, draft))

    def _commit(self, tokens: int, base: int, draft: object) -> None:
        self.committed = min(self.length, self.committed + max(1, tokens))
        self.tell(base, self.committed, draft)


# -- emulated ---------------------------------------------------------------------------------------------------


class TimedLoop(HandLoop):
    """Goes from one timer to the next."""

    def drain(self, task: asyncio.Task[None]) -> None:
        self.settle()
        while not task.done():
            self.advance(max(0.0, min(timer._when for timer in self._scheduled) - self.now))


def reach(trace: ItemTrace, draft: Draft) -> int:
    """Draft tokens at its head that are the text's."""
    return common_prefix(draft.block.ids, trace.target_ids[draft.block.base - len(trace.prompt_ids) :])


def verdict_of(trace: ItemTrace, base: int, end: int, draft: object) -> Verdict:
    """What a server that has committed the text up to `end` says since `base`."""
    text = trace.target_ids
    counter, right = (draft.counter, reach(trace, draft)) if isinstance(draft, Draft) else (0, 0)
    return Verdict(
        len(trace.prompt_ids) + base,
        text[base:end],
        min(right, end - base),
        answers=counter,
        finish_reason="length" if end == len(text) else "",
    )


@dataclass
class Served:
    """A `Verifier` over `Waits`."""

    trace: ItemTrace
    loop: TimedLoop
    step_s: float
    sent: list[Sent] = field(default_factory=list)
    draft_probs: bool = False
    noise_key: bytes = bytes(16)
    turn: Turn = field(default_factory=Turn)
    limits: Limits = field(default_factory=lambda: Limits(MAX_DRAFT, 4096))

    def __post_init__(self) -> None:
        self.truth = Truth(self.trace.prompt_ids)
        self.verdicts: asyncio.Queue[Verdict] = asyncio.Queue()
        self.server = Waits(len(self.trace.target_ids), self.step_s, self.loop.call_later, self._tell)
        self.server.start()

    def _tell(self, base: int, end: int, draft: object) -> None:
        self.verdicts.put_nowait(verdict_of(self.trace, base, end, draft))

    async def submit(self, draft: Draft) -> None:
        self.turn.draft(draft)
        base = draft.block.base - self.truth.prompt_length
        self.sent.append((self.loop.time(), base, len(draft.block.tokens), draft.seconds))
        self.server.submit(base, len(draft.block.tokens), reach(self.trace, draft), draft)

    async def next_verdict(self) -> Verdict:
        return await self.verdicts.get()

    async def close(self) -> None:
        pass


def emulated(trace: ItemTrace, rule: FixedLength, pace: DraftSpeed, step_s: float, ahead: bool) -> list[Sent]:
    loop = TimedLoop()
    asyncio.set_event_loop(loop)
    try:
        drafts = ReplayDrafts({trace.prompt_ids: trace}, pace, rule, looks_ahead=ahead)

        async def read() -> list[Sent]:
            served = Served(trace, loop, step_s)
            params = SamplingParams(temperature=0, max_tokens=len(trace.target_ids))
            async for _ in generate(served, drafts, params):
                pass
            assert served.truth.generated == trace.target_ids
            return served.sent

        task = loop.create_task(read())
        loop.drain(task)
        return task.result()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


# -- simulated --------------------------------------------------------------------------------------------------


class SimulatedWaits:
    """In the place of a `SimulatedServer`."""

    def __init__(self, events: Events, step_s: float) -> None:
        self.events, self.step_s = events, step_s
        self.sent: list[Sent] = []

    def open(self, reader) -> None:
        self.trace, self.reader = reader.script.trace, reader
        later = lambda seconds, call: self.events.at(self.events.now + seconds, lambda _: call())  # noqa: E731
        self.server = Waits(reader.script.text, self.step_s, later, self._tell)
        reader.opened(SimpleNamespace(sources=SimpleNamespace(device=SimpleNamespace(turn=Turn()))))
        self.server.start()

    def limits_of(self, script) -> Limits:
        return Limits(MAX_DRAFT, script.prompt + script.last)

    def _tell(self, base: int, end: int, draft: object) -> None:
        self.reader.told(verdict_of(self.trace, base, end, draft))

    def submit(self, arrived) -> None:
        _, draft = arrived
        base = draft.block.base - len(self.trace.prompt_ids)
        self.sent.append((self.events.now, base, len(draft.block.tokens), draft.seconds))
        self.server.submit(base, len(draft.block.tokens), reach(self.trace, draft), draft)


def simulated(
    trace: ItemTrace, rule: FixedLength, pace: DraftSpeed, step_s: float, ahead: bool
) -> tuple[list[Sent], RequestRecord]:
    events = Events()
    server = SimulatedWaits(events, step_s)
    device = SimulatedDevice(events, server, ways("", 0), SimulatedDrafts(events, pace, rule, ahead), None)
    [script] = scripts(TraceSet("steady", "steady", {}, (trace,)))
    record, done = RequestRecord(0, 0, trace.item, 0.0), []
    device.ask(record, script, done.append)
    events.run(1000.0)
    assert done == [record] and record.tokens == len(trace.target_ids)
    return server.sent, record


# -- both -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_both_send_the_same_blocks_at_the_same_times(seed, ahead):
    rng = random.Random(seed)
    trace = steady(seed, rng.choice((0.6, 0.8, 0.95)))
    rule = ConfidenceLength(rng.randint(1, 12), confidence=rng.choice((0.0, 0.0, 0.5)))
    pace, step_s = speed(rng.uniform(5, 60), rng.uniform(50, 900)), rng.uniform(0.02, 0.4)
    real, ours = (each(trace, rule, pace, step_s, ahead) for each in (emulated, simulated))
    assert len(real) > 3
    assert [sent[1:3] for sent in ours[0]] == [sent[1:3] for sent in real]
    for name in (0, 3):
        assert [sent[name] for sent in ours[0]] == pytest.approx([sent[name] for sent in real], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_drafting_ahead_saves_time_and_no_tokens(seed):
    """With a drafter that is mostly right and as slow as the server; what is written in a round stays the same."""
    trace, pace = steady(seed, 0.9), speed(20, 500)
    first, second = (simulated(trace, FixedLength(3), pace, 0.21, ahead)[1] for ahead in (False, True))
    assert second.arrivals[-1].time < 0.85 * first.arrivals[-1].time
    assert sum(r.accepted for r in second.rounds) / len(second.rounds) == pytest.approx(
        sum(r.accepted for r in first.rounds) / len(first.rounds), rel=0.2
    )
    assert second.wasted > first.wasted


def test_a_rule_that_does_not_exist_is_refused_where_the_fleet_is_read(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('[[device]]\nstop = "never"\n')
    with pytest.raises(UsageError, match=r"stop = 'never' is not known; choose from fixed, hint"):
        read_fleet(path)
    path.write_text("[[device]]\nconfidence = 3.0\n")
    with pytest.raises(UsageError, match="confidence must lie within 0 and 1"):
        read_fleet(path)
    path.write_text('[[device]]\nstop = "hint"\nlook_ahead = true\n')
    assert read_fleet(path).groups[0].look_ahead
