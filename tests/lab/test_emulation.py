"""The emulated accelerator: its time is the profile's, its tokens are the real target's."""

import json

import pytest

from lab.testbed.emulation import emulated_accelerator as accelerator
from lab.testbed.emulation.emulated_accelerator import TOTALS, VARIABLE, EmulatedEngine, environment
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.fleet import Server
from lab.testbed.processes import Process
from opensled.core.errors import NotFound, UsageError
from opensled.core.messages import SamplingParams
from tests.emulated import HandClock, cost
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.system import ask, running
from verify_server.engine.base import SampleRequest, Segment
from verify_server.options.serve_config import ServeConfig

# Weights are read in 1 s, 1,000 positions of KV in 1 s.
LAW = StepLaw(cost(1.0, 1_000_000), context=500)
GREEDY = SamplingParams(temperature=0)


# -- what a step costs ------------------------------------------------------------------------------------------


def test_a_step_reads_the_weights_once_and_every_context_with_what_it_held_before():
    assert LAW.step_s([StepPiece(5, 100)]) == pytest.approx(1.0 + 0.6)
    assert LAW.step_s([StepPiece(5, 100), StepPiece(1, 20)]) == pytest.approx(1.0 + 0.6 + 0.52)


def test_a_step_over_nothing_takes_no_time():
    assert LAW.step_s([]) == 0.0


def test_a_pass_of_a_draft_on_the_accelerator_is_a_step_of_its_size_and_no_part_of_the_targets():
    law, pieces = StepLaw(LAW.target, cost(0.1, 100_000), context=500), [StepPiece(1, 100), StepPiece(1, 20)]
    assert law.step_s(pieces) == LAW.step_s(pieces)
    assert law.pass_s(pieces) == pytest.approx(0.1 + 0.06 + 0.052)
    assert LAW.drafting is None and law.drafting
    assert law.drafting.pass_s == pytest.approx(0.1)
    assert law.drafting.token_s == pytest.approx(0.05), "each token reads what its session held before"


# -- the accelerator --------------------------------------------------------------------------------------------


class Working(FakeEngine):
    """Real work of so many seconds on a clock moved by hand."""

    clock: HandClock
    work_s = 0.25

    def forward(self, segments):
        self.clock.now += self.work_s
        return super().forward(segments)


@pytest.fixture
def clock(monkeypatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(accelerator, "time", clock)
    return clock


@pytest.fixture
def working(clock) -> Working:
    engine = Working()
    engine.clock = clock
    return engine


SEGMENTS = [Segment((3, 1, 4), 0, (0, 1), rows=1), Segment((2, 7), 0, (2,), rows=2)]
DUE = 1.0 + (503 + 502) / 1000


def test_a_step_ends_when_its_sessions_are_sampled(working, clock):
    engine = EmulatedEngine(working, LAW, dilation=2)
    started = clock.now
    scores = engine.forward(SEGMENTS)
    assert clock.now - started == pytest.approx(working.work_s)
    requests = [SampleRequest([0], GREEDY, b"", 3), SampleRequest([1, 2], GREEDY, b"", 1)]
    first, second = scores.sample(requests)
    assert clock.now - started == pytest.approx(2 * DUE)
    assert [*first, *second] == [
        continuation([3, 1, 4], 1)[0],
        continuation([2], 1)[0],
        continuation([2, 7], 1)[0],
    ]


def test_a_step_that_samples_nothing_ends_by_itself(working, clock):
    started = clock.now
    EmulatedEngine(working, LAW).forward([Segment((3, 1, 4), 0, (0, 1), rows=0)])
    assert clock.now - started == pytest.approx(1.503)


def test_an_error_of_the_last_session_still_ends_the_step(working, clock):
    working.target = lambda context: 1 / 0
    scores = EmulatedEngine(working, LAW).forward(SEGMENTS[:1])
    with pytest.raises(ZeroDivisionError):
        scores.sample([SampleRequest([0], GREEDY, b"", 3)])
    assert clock.slept == pytest.approx(1.503 - working.work_s)


def test_rule_ratio_ends_with_a_residual_or_a_sample(working, clock):
    scores = EmulatedEngine(working, LAW).forward(SEGMENTS[1:])
    scores.probs_of([0], [7], GREEDY)
    assert not clock.slept
    scores.sample_residual(0, None, GREEDY, b"", 1)
    assert clock.slept == pytest.approx(1.502 - working.work_s)


def test_work_that_takes_longer_than_the_profile_is_counted_as_late(working, clock):
    engine = EmulatedEngine(working, LAW)
    for work_s in (0.25, 2.503, 1.753):
        working.work_s = work_s
        engine.forward(SEGMENTS[:1]).sample([SampleRequest([0], GREEDY, b"", 3)])
    totals = engine.totals
    assert (totals.steps, totals.late_steps) == (3, 2)
    assert totals.late_s == pytest.approx(1.25)
    assert (totals.due_s, totals.work_s) == pytest.approx((3 * 1.503, 0.25 + 2.503 + 1.753))


def test_free_blocks_are_heard_of_by_who_wants_to_hear():
    heard = []
    listening = FakeEngine()
    listening.forget = heard.append
    for inner in (listening, FakeEngine()):
        EmulatedEngine(inner, LAW).forget((1, 2))
    assert heard == [(1, 2)]


async def test_the_text_is_the_targets_own():
    fast = StepLaw(cost(1e-6, 0))
    async with running(EmulatedEngine(FakeEngine(), fast)) as network:
        answer = await ask(network, [3, 1, 4], OracleDrafter(0.7))
        assert answer.tokens == tuple(continuation([3, 1, 4], 40))


# -- its settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "cause"),
    [
        ("", UsageError, VARIABLE),
        ("{", UsageError, "Expecting"),
        ("[1]", UsageError, VARIABLE),
        ('{"accelerator": "a100-80", "wheels": 4}', UsageError, "wheels"),
        ('{"accelerator": "a100-80", "dilation": 0}', UsageError, "dilation"),
        ('{"accelerator": "a100-80", "dilation": "long"}', UsageError, "dilation"),
        ('{"accelerator": "a100-80", "context": "long"}', UsageError, "context"),
        ('{"accelerator": "abacus"}', NotFound, "abacus"),
        ('{"accelerator": "a100-80", "engine": "steam"}', UsageError, "steam"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings, kind, cause, monkeypatch):
    monkeypatch.setenv(VARIABLE, settings)
    with pytest.raises(kind, match=cause):
        accelerator.load(ServeConfig(model="tiny"))


def test_the_environment_says_all_that_the_law_needs(monkeypatch):
    server = Server(accelerator="a100-80", target="dense-8b", weight_bits=8, context=77, draft="0.5b")
    monkeypatch.setenv(VARIABLE, environment(server, 3.0)[VARIABLE])
    assert accelerator.settings() == (server, 3.0, "")


@pytest.mark.long
def test_a_real_server_tells_its_totals_at_the_end():
    settings = environment(Server(accelerator="a100-80", engine="llamacpp"), 2.0)
    engine = "lab.testbed.emulation.emulated_accelerator:load"
    words = ["serve", "--engine", engine, "--listen", "127.0.0.1:0"]
    with Process(words, isolated=True, environment=settings) as server:
        generate = ["generate", "--server", server.wait_ready(), "hello", "--max-tokens", "12", "--json"]
        with Process(generate, isolated=True) as client:
            assert client.process.wait(60) == 0
    told = next(json.loads(line.removeprefix(TOTALS)) for line in server.lines if line.startswith(TOTALS))
    assert told["steps"] > 0 and told["due_s"] > 0.02 * told["steps"]
