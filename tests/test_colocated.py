"""A draft model beside the target, as the testbed plays it: whole batches. Run: pytest tests/test_colocated.py"""

from __future__ import annotations

import time

import pytest

from hw_profiles.step_cost import HardwareProfile
from opensled_testbed.baselines import COLOCATED, server_sd
from opensled_testbed.cells import CELLS
from opensled_testbed.emulation.colocated import Colocated
from opensled_testbed.emulation.emulated_accelerator import EmulatedEngine
from opensled_testbed.emulation.step_law import StepLaw, StepPiece
from opensled_testbed.fleet import Server
from scheduler import POLICIES
from scheduler.baselines import Fcfs
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Snapshot
from tests.fakes import FakeEngine
from verify_server.engine.base import SampleRequest, Segment

WAIT = 1.0
SERVER = Server(accelerator="a100-80", draft="0.5b")


def view(id, uncomputed=1, draft=None, server_drives=False, waiting_since=0.0, paused=False, absent=False):
    return SessionView(id, uncomputed, draft, server_drives, waiting_since, paused, absent)


def plan(*sessions, now=0.5):
    return Colocated(WAIT).plan(Snapshot(sessions), HardwareProfile(), now)


def fcfs(*sessions, now=0.5):
    return Fcfs(WAIT).plan(Snapshot(sessions), HardwareProfile(), now)


def test_it_is_the_policy_of_the_baseline():
    assert server_sd(CELLS[0].fleet()).server.policy == COLOCATED
    assert POLICIES.get(COLOCATED).of(PolicyOptions(0.5)) == Colocated(0.5)


def test_a_batch_waits_for_the_last_draft_and_then_takes_all():
    sessions = [view(1, draft=4), view(2, waiting_since=0.2), view(3, uncomputed=30, server_drives=True)]
    assert plan(*sessions) == BatchPlan((), 1.2)
    sessions[1] = view(2, draft=2)
    assert {each.session for each in plan(*sessions).slices} == {1, 2, 3}
    assert plan(*sessions) == fcfs(*sessions)


def test_it_waits_no_longer_than_it_was_told_and_not_for_those_who_will_not_draft():
    late = view(1, draft=4), view(2, waiting_since=0.2)
    assert plan(*late, now=1.2) == fcfs(*late, now=1.2)
    others = view(1, draft=4), view(2, paused=True), view(3, absent=True), view(4, server_drives=True)
    assert plan(*others) == fcfs(*others)


def test_drafting_costs_a_pass_of_the_draft_model_for_each_token_of_the_longest_draft():
    law = StepLaw.of(SERVER)
    pieces = [StepPiece(5, 50, 4), StepPiece(3, 20, 2), StepPiece(1, 9)]
    assert law.draft is not None
    one_pass = law.draft.verify_s(2, 2 * SERVER.context + 70)
    assert law.drafting_s(pieces) == pytest.approx(4 * one_pass)
    assert law.step_s(pieces) == pytest.approx(law.target.verify_s(9, 3 * SERVER.context + 79) + 4 * one_pass)
    assert StepLaw.of(Server(accelerator="a100-80")).drafting_s(pieces) == 0.0


def timed(engine, segments, clock):
    """Seconds that a step of a fake engine is made to last."""
    started = clock()
    scores = engine.forward(segments)
    scores.sample([SampleRequest([0], None, b"", 0)])
    return clock() - started


def test_the_time_in_which_drafts_come_in_is_the_time_in_which_they_are_drafted(monkeypatch):
    """A pause between two steps that is shorter than the drafting makes the second one that much shorter."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    law = StepLaw.of(SERVER)
    engine = EmulatedEngine(Instant(), law, dilation=2.0)
    segment = Segment((5, 6, 7, 8, 9), 10, (0, 1), rows=5)
    whole_s = 2 * law.step_s([StepPiece(5, 15, 4)])
    drafting_s = 2 * law.drafting_s([StepPiece(5, 15, 4)])
    # Idle for long before
    assert timed(engine, [segment], time.perf_counter) == pytest.approx(whole_s - drafting_s)
    now[0] += drafting_s / 2
    assert timed(engine, [segment], time.perf_counter) == pytest.approx(whole_s - drafting_s / 2)
    assert timed(engine, [segment], time.perf_counter) == pytest.approx(whole_s)


class Instant(FakeEngine):
    """No time passes in it, and whatever it is asked it samples a 0."""

    def forward(self, segments):
        return self

    def sample(self, requests):
        return [[0] * len(request.rows) for request in requests]
