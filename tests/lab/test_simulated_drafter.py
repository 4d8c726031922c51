"""The draft beside the target in the simulator and on an emulated accelerator: recorded drafts, at the law's pace."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw_profiles.step_cost import HardwareProfile, Roofline
from lab.benchmarks.cell_turns import PlannedRun, fleet_of, short_items, shortened
from lab.testbed.baselines import DRAFT_BESIDE, OF_HEADS, opensled
from lab.testbed.cells import CELLS, REGIMES
from lab.testbed.emulation.recorded_drafter import RecordedDrafter
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.fleet import Fleet, Group, Wish
from lab.testbed.load.load import Load
from lab.testbed.load.run import run_fleet
from lab.testbed.load.server_process import RECORDED, command, serving, unflagged
from lab.testbed.recordings import BUNDLED
from lab.testbed.simulated.compare import compare, throughput
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.sequences import RecordedSequence, scripts
from lab.testbed.simulated.server import VOCABULARY, SimulatedServer, drafting_of
from lab.testbed.simulator import simulate, simulate_users
from lab.testbed.traces import TraceSet, read_traces
from opensled.core.errors import UsageError
from opensled.core.messages import Draft, DraftBlock, DraftToken, SamplingParams
from opensled.core.protocol import common_prefix
from scheduler.estimates import DraftEstimate, Forecast
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.goodput.state import GoodputState, current
from scheduler.plan import BatchPlan, SessionView, Slice, Snapshot
from tests.emulated import cost
from tests.lab.made_traces import made
from tests.lab.simulated_drafts import HUB, ask, fleet
from tests.views import viewed
from verify_server.drafting.model import READ
from verify_server.round.drafter import Ask
from verify_server.round.offer import DraftLimits
from verify_server.round.server_source import ServerDrafts
from verify_server.round.session import Session
from verify_server.round.sources import DraftSources
from verify_server.round.terms import Terms
from verify_server.rules.base import decided_ids
from verify_server.rules.match import Match

# Weights in 1 s, those of the draft in 0.1 s; positions cost next to nothing.
LAW = StepLaw(cost(1.0, 4), cost(0.1, 4))
SHORT = Load(warmup=2.0, duration=10.0)


# -- what it drafts, and what that takes ------------------------------------------------------------------------


def drafter_of(traces: TraceSet) -> tuple[RecordedDrafter, list[float]]:
    spent: list[float] = []
    return RecordedDrafter(traces.items, LAW, spent.append), spent


def test_it_proposes_what_was_recorded_after_the_text_in_as_many_passes_as_tokens():
    traces = made(acceptance=1.0, tokens=32)
    drafter, spent = drafter_of(traces)
    item = traces.items[0]
    [found] = drafter.propose([ask(traces, 1)])
    assert [token.id for token in found.block.tokens] == list(item.proposals[1].ids[:4])
    assert (found.block.base, found.read, found.unread) == (len(item.prompt_ids) + 1, found.block.base, 0)
    assert spent == [pytest.approx(0.4, rel=1e-3)]
    [found] = drafter.propose([ask(traces, 6)._replace(computed=len(item.prompt_ids) + 4)])
    assert found.read == 2


def test_the_sessions_of_a_step_share_its_passes():
    traces = made(acceptance=1.0, tokens=32)
    drafter, spent = drafter_of(traces)
    drafter.propose([ask(traces, 1, 2, session=1), ask(traces, 1, 5, session=2)])
    assert spent == [pytest.approx(0.5, rel=1e-3)]


def test_a_long_text_is_read_in_pieces_before_anything_is_drafted():
    traces = made(1, tokens=32)
    long = replace(traces.items[0], prompt_ids=tuple(range(3000, 3000 + READ + 40)))
    drafter, spent = drafter_of(traces := replace(traces, items=(long,)))
    [first] = drafter.propose([ask(traces, 1)])
    assert (first.block.tokens, first.read, first.unread) == ((), READ, 41)
    [second] = drafter.propose([ask(traces, 2)._replace(computed=READ)])
    assert (len(second.block.tokens), second.read, second.unread) == (4, 42, 0)
    assert spent == [pytest.approx(0.1, rel=1e-3), pytest.approx(0.4, rel=1e-3)]


def test_a_text_that_was_not_recorded_is_an_error():
    drafter, _ = drafter_of(made())
    with pytest.raises(AssertionError, match="nothing is recorded"):
        drafter.propose([Ask(1, "", (1, 2, 3, 4), 4, SamplingParams(), b"")])


# -- in the simulator -------------------------------------------------------------------------------------------


class Listener:
    """A reader of a simulated session, without a device."""

    wish = Wish()

    def __init__(self, traces: TraceSet) -> None:
        self.script = scripts(traces)[0]
        self.session = None

    def refused(self) -> None:
        raise AssertionError("there is a place")

    def opened(self, session) -> None:
        self.session = session

    def told(self, message) -> None:
        """Verdicts are read off the sequence."""


def test_verdicts_leave_before_the_server_drafts():
    traces = made(1, acceptance=1.0, tokens=32)
    events, reader = Events(), Listener(traces)
    server = SimulatedServer(events, LAW, Fcfs(0.25, 3), 2, drafting=drafting_of(LAW, traces.items))
    server.open(reader)
    events.run(1.1)  # the prompt's step ends after 1 s, its three passes after 0.3 s more
    drafts = reader.session.sources.servers[0].estimate
    assert (server.totals.steps, server.totals.tokens, drafts.drafts) == (1, 1, 0)
    events.run(2.2)
    assert (drafts.drafts, server.totals.tokens) == (1, 1)
    events.run(2.4)
    assert (server.totals.steps, server.totals.tokens) == (2, 5)
    assert server.totals.busy_s == pytest.approx(2.6, rel=1e-3)
    assert server.totals.drafting_s == pytest.approx(0.6, rel=1e-3)


def test_with_all_places_taken_nobody_is_drafted_for():
    """The second session takes the place in which the first one's draft had its KV."""
    traces = made(2, acceptance=0.0, tokens=32)
    events = Events()
    server = SimulatedServer(events, LAW, Fcfs(0.25, 3), 2, drafting=drafting_of(LAW, traces.items))
    server.open(Listener(traces))
    events.run(5)
    before = server.totals.drafting_s
    server.open(Listener(traces))
    events.run(25)
    assert before > 0 and server.free == 0
    assert server.totals.drafting_s <= before + 0.4 and server.totals.tokens > 30


def session_of(traces: TraceSet) -> Session:
    """One whose prompt is computed."""
    sequence = RecordedSequence(scripts(traces)[0])
    sequence.computed = len(sequence) - 1
    sources = DraftSources(DraftLimits(VOCABULARY, 16, 64), servers=[ServerDrafts(DraftEstimate())])
    return Session(1, "", sequence, Terms(SamplingParams(), b"", Match()), sources)


def chain(base: int, text: tuple[int, ...], right: int, length: int, wrong: int) -> DraftBlock:
    """`length` tokens of which the first `right` are the text's."""
    ids = [*text[:right], *([wrong] * length)][:length]
    return DraftBlock(base, tuple(map(DraftToken, ids)))


@settings(max_examples=150)
@given(
    device=st.tuples(st.integers(0, 6), st.integers(1, 6)),
    own=st.tuples(st.integers(0, 6), st.integers(1, 6)),
)
def test_the_drafts_of_device_and_server_are_decided_as_one_tree(device, own):
    """It brings what the better of both brings, whichever that is."""
    traces = made(1, tokens=60, seed=3)
    text = traces.items[0].target_ids
    session = session_of(traces)
    base = len(session.sequence)
    drafts = [chain(base, text, *device, 5), chain(base, text, *own, 6)]
    session.attach(base)
    session.submit(Draft(1, drafts[0]), 0.0)
    session.sources.servers[0].hold(drafts[1], 0.0)
    item = session.plan(Slice(1, 1, True), 0.0)
    assert item.check is not None
    ids = [[token.id for token in draft.tokens] for draft in drafts]
    if common_prefix(*ids) < min(map(len, ids)):
        assert item.check.parents, "two ways to go on are a tree"
    assert isinstance(session.sequence, RecordedSequence)
    result = session.sequence.decided(item)
    assert result is not None
    stands = max(common_prefix(each, text) for each in ids)
    assert decided_ids(item.check, result) == text[: stands + 1]
    assert session.commit(item, result, 0.0) == stands + 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in OF_HEADS)) for name in DRAFT_BESIDE]
)
def test_every_answer_is_the_whole_text_and_drafts_bring_more_of_it_a_step(name):
    traces = made(12, 0.8, tokens=48)
    lengths = {item.item: len(item.target_ids) for item in traces.items}
    found, plain = simulate(fleet(name), traces, SHORT), simulate(fleet("centralized"), traces, SHORT)
    done = [record for record in found.requests if record.finish_reason]
    assert done and all(record.tokens == lengths[record.item] for record in done)
    assert found.server.drafting_s > 0
    assert (
        found.server.tokens / found.server.step_sessions
        > 1.5 * plain.server.tokens / plain.server.step_sessions
    )
    assert plain.server.drafting_s == 0


def test_a_server_that_drafts_in_vain_soon_drafts_no_more():
    traces = made(12, 0.0, tokens=48)
    vain, plain = (simulate(fleet(name), traces, SHORT) for name in ("opensled-server", "centralized"))
    fixed = simulate(fleet("server-sd"), traces, SHORT)
    rate = throughput(plain)
    assert rate and (throughput(vain) or 0) > 0.9 * rate > (throughput(fixed) or 0)


def test_the_longest_fixed_draft_is_what_the_fleet_says():
    assert [fleet("server-sd", length).server.draft_length for length in (2, 8)] == [2, 8]
    traces = made(12, 1.0, tokens=48)
    long, short = (simulate(fleet("server-sd", length), traces, SHORT).server for length in (8, 2))
    assert long.tokens / long.step_sessions > 1.5 * short.tokens / short.step_sessions


def test_only_the_weights_of_a_draft_take_memory_from_sessions():
    beside = replace(HUB, draft="0.5b", context=8192)
    assert beside.draft_cost is not None
    machine = beside.cost.accelerator
    room = machine.memory_gib * 2**30 * machine.usable_memory.typical - beside.cost.weight_bytes
    room -= beside.draft_cost.weight_bytes
    assert beside.sessions_that_fit == int(room / beside.cost.kv_bytes) // 8192
    with pytest.raises(UsageError, match=r"beside a 0\.5b draft"):
        simulate(Fleet(replace(beside, context=10_000_000)), made(), SHORT)


def test_devices_of_the_parts_of_opensled_draft_alone_or_not_at_all():
    whole, device, server = (fleet(name) for name in ("opensled", "opensled-device", "opensled-server"))
    assert (whole.server.draft, device.server.draft, server.server.draft) == ("0.5b", "", "0.5b")
    drafters = {each.groups[0].drafter for each in (whole, device)}, server.groups[0].drafter
    assert drafters == ({"llamacpp"}, "none")


# -- on an emulated accelerator ---------------------------------------------------------------------------------


def test_a_server_process_is_told_of_its_drafter():
    words = command(fleet("server-sd", 3).server, 1.0)
    at = words.index("--server-drafter")
    assert words[at : at + 2] == ["--server-drafter", RECORDED]
    assert unflagged(fleet("server-sd", 3).server)["OPENSLED_SERVER_DRAFT"] == "3"
    real = command(replace(HUB, accelerator="", draft="0.5b"), 1.0)
    assert real[real.index("--server-drafter") + 1] == "model"
    none = command(fleet("centralized").server, 1.0)
    assert none[none.index("--server-drafter") + 1] == "none"


async def test_without_a_recording_an_emulated_server_has_no_draft():
    with pytest.raises(UsageError, match="nothing is recorded"):
        async with serving(fleet("opensled").server):
            raise AssertionError("it must not start")


@pytest.mark.long
@pytest.mark.parametrize("name", ["server-sd", "opensled", "opensled-specformer"])
def test_the_simulator_foretells_an_emulated_run_with_a_draft_beside_the_target(name):
    """Real processes, the target's own texts. The tolerances are those of any cell."""
    cell = replace(CELLS[4], users=4)
    asked = fleet_of(cell, PlannedRun(name, 0), 4)
    traces = shortened(read_traces(BUNDLED), 24)
    load = Load(warmup=2.0, duration=8.0)
    real = asyncio.run(run_fleet(asked, short_items(24), traces, load))
    foretold = simulate(asked, traces, load)
    assert not any(record.error for record in real.requests)
    assert abs(compare(real, foretold)["throughput"]["error"]) < 0.1
    assert real.server.drafting_s == pytest.approx(foretold.server.drafting_s, rel=0.15)


# -- hints under goodput stand still ------------------------------------------------------------------------------


REVIEW_S = 1.0  # between two plans, so that each is a review
SETTLED, REVIEWS = 10, 20  # reviews after which hints stand, and for which they do
BUSY = Roofline(read_s=0.02, token_s=2e-4)  # some dozens of positions cost as much as reading the weights


def devices(seed: int) -> list[SessionView]:
    """Sessions of one to three kinds of devices, and no two of them quite alike."""
    chance = random.Random(seed)
    kinds = [
        Forecast(
            chance.uniform(0.3, 0.95),
            chance.uniform(0.4, 0.95),
            chance.choice((0.005, 0.02, 0.06, 0.15)),
            chance.choice((0.003, 0.01, 0.025)),
            0.01,
            50,
        )
        for _ in range(chance.randint(1, 3))
    ]
    pace = chance.choice((0.0, 8.0))
    return [
        viewed(number, hint=4, pace=pace, context=chance.randint(200, 2000), forecast=chance.choice(kinds))
        for number in range(1, chance.choice((4, 8, 16, 32)) + 1)
    ]


def reviewed(sessions: Sequence[SessionView], reviews: int) -> list[dict[int, int]]:
    """The hints after each review, those of probes left out."""
    hints, memory = [], None
    for number in range(reviews):
        memory = current(memory, sessions, HardwareProfile(512, BUSY), number * REVIEW_S)
        hints.append(dict(memory.hints))
    return hints


@pytest.mark.parametrize("seed", [71, 85, 263, *range(12)])
def test_with_the_same_estimates_hints_stand_still(seed):
    """With the first three seeds devices were told one length and another in turn, for ever."""
    hints = reviewed(devices(seed), SETTLED + REVIEWS)[SETTLED:]
    assert all(each == hints[0] for each in hints)


class Watched:
    """Policy `goodput`, and how often the hint of a session changes from review to review."""

    def __init__(self) -> None:
        self._inner, self._last = Goodput(0.25), 0.0
        self.changes, self.session_s = 0, 0.0

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        plan = self._inner.plan(snapshot, profile, now)
        before, after = snapshot.memory, plan.memory
        if isinstance(before, GoodputState) and isinstance(after, GoodputState) and now > WARM_UP:
            self.session_s += (now - self._last) * len(snapshot.sessions)
            self.changes += sum(before.hints.get(id, hint) != hint for id, hint in after.hints.items())
        self._last = now
        return plan


WARM_UP = 5.0  # seconds


@pytest.mark.parametrize(
    ("regime", "kinds", "most"),
    [
        pytest.param("moe", [("orin-nano-super", "wifi-good")], 40, marks=pytest.mark.long),
        ("dense-8k", [("orin-nano-super", "wifi-good"), ("orin-nx", "ethernet"), ("agx-orin", "wifi-busy")], 60),
    ],
)  # fmt: skip
def test_under_a_steady_load_hints_change_seldom(regime, kinds, most):
    """Sixty users who always read; estimates vary with luck, and some changes of hints come from that.

    A session's hint changed 149 and 125 times a minute while every response was followed, and 12 and 27 times since.
    """
    groups = tuple(Group(60 // len(kinds), *kind) for kind in kinds)
    policy, load = Watched(), Load(warmup=WARM_UP, duration=12.0)
    fleet = opensled(Fleet(REGIMES[regime], groups))
    traces = made(items=40, acceptance=0.7, seed=1, tokens=400)
    simulate_users(fleet, traces, load, range(fleet.users), policy=policy)
    assert policy.changes / (policy.session_s / 60) < most
