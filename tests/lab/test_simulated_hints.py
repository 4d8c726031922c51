"""Simulated devices that a policy tells how much to draft, and what that policy sees of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from hw_profiles.step_cost import HardwareProfile
from lab.testbed.baselines import opensled
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load
from lab.testbed.load.records import RequestRecord, RunResult
from lab.testbed.simulator import simulate
from scheduler.fcfs import Fcfs
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Snapshot
from tests.lab.made_traces import made

HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512, draft_wait=100.0)
GROUP = Group(1, "orin-nano-super", "wifi-good", draft_length=8, pace=5.0)
TRACES = made(tokens=64)
LONG = Load(warmup=1.0, duration=60.0)


@dataclass(frozen=True)
class Advising:
    """`fcfs` that gives one hint with every verdict, and verifies `longest` tokens of a draft at most."""

    inner: Fcfs
    hint: ClassVar[int | None] = None
    longest: ClassVar[int | None] = None

    @classmethod
    def of(cls, options: PolicyOptions) -> Advising:
        return cls(Fcfs.of(options))

    def advice(self, session: int, steps: int) -> int | None:
        return self.hint

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        steps = snapshot.memory if isinstance(snapshot.memory, int) else 0
        plan = self.inner.plan(snapshot, profile, now)
        slices = [
            replace(piece, draft=self.longest, hint=self.advice(piece.session, steps))
            for piece in plan.slices
        ]
        return replace(plan, slices=tuple(slices), memory=steps + bool(slices))


class Rest(Advising):
    hint = 0


class Two(Advising):
    hint = 2


class Trims(Advising):
    longest = 1


class InTurns(Advising):
    """Ten steps of rest, ten in which the device drafts."""

    def advice(self, session: int, steps: int) -> int | None:
        return 3 * (steps // 10 % 2)


class Watching(Advising):
    """Remembers every view."""

    hint = 4
    seen: ClassVar[list[tuple[float, SessionView]]] = []

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        self.seen.extend((now, view) for view in snapshot.sessions)
        return super().plan(snapshot, profile, now)


def run(policy: type, group: Group = GROUP, load: Load = LONG) -> RunResult:
    server = replace(HUB, policy=f"{policy.__module__}:{policy.__name__}")
    return simulate(Fleet(server, (group,)), TRACES, load)


def finished(result: RunResult) -> list[RequestRecord]:
    lengths = {item.item: len(item.target_ids) for item in TRACES.items}
    records = [record for record in result.requests if record.finish_reason]
    assert len(records) > 3
    assert all(record.tokens == lengths[record.item] for record in records)
    return records


def test_a_device_that_is_told_to_rest_reads_the_server_s_own_tokens():
    """The next request begins with that hint, so that not even its first block is drafted."""
    records = finished(run(Rest))
    assert all(not record.rounds for record in records[1:])
    assert all(record.wasted == 0 for record in records[1:])


def test_blocks_are_no_longer_than_the_hint():
    rounds = [round for record in finished(run(Two))[1:] for round in record.rounds]
    assert max(round.drafted for round in rounds) == 2
    assert max(round.accepted for round in rounds) == 2


def test_of_a_longer_draft_only_so_much_is_verified_as_the_policy_says():
    """The target's own token after it may be the draft's next one: to the device that is accepted as well."""
    rounds = [round for record in finished(run(Trims)) for round in record.rounds]
    assert max(round.drafted for round in rounds) == 8
    assert max(round.accepted for round in rounds) == 2


def test_a_device_that_rested_drafts_again_when_it_is_asked_to():
    """Its server waits for that draft for as long as it takes, so nobody is stuck only if it comes."""
    records = finished(run(InTurns))
    rounds = [round for record in records for round in record.rounds]
    assert len(rounds) > len(records)
    served_without = sum(record.tokens for record in records) - sum(1 + r.accepted for r in rounds)
    assert served_without > sum(record.tokens for record in records) / 4


@pytest.mark.parametrize("drafter", ["none", "llamacpp"])
def test_who_has_nothing_to_draft_hands_the_drive_back(drafter):
    """With an empty block, even where the server waits for a draft: else it would wait for ever."""
    group = replace(GROUP, drafter=drafter, draft_length=0)
    assert all(not record.rounds for record in finished(run(InTurns, group)))


def test_a_request_that_finds_the_device_at_work_is_decoded_also_under_hints():
    load = replace(LONG, arrivals="trace", trace=(0.5, 0.5, 0.5, 0.6, 0.7))
    assert len(finished(run(InTurns, load=load))) == 5


def test_a_policy_sees_what_a_real_server_shows_it():
    Watching.seen.clear()
    result = run(Watching, load=replace(LONG, duration=20.0))
    views = [view for _, view in Watching.seen]
    assert {view.pace for view in views} == {5.0}
    assert all(view.context + view.uncomputed > 0 for view in views)
    first = [view for view in views if view.id == 1]
    assert first[0].device.forecast is None and first[0].device.hint is None
    later = next(view.device for view in views if view.id == 3)
    assert later.hint == 4
    assert later.forecast is not None and later.forecast.drafts > 5
    assert later.forecast.draft_s == pytest.approx(1 / 40, rel=0.5)
    begun = next(now for now, view in Watching.seen if view.id == 1 and view.due > view.waiting_since)
    assert begun >= result.requests[0].sent
    dues = [view.due for view in first]
    assert dues == sorted(dues)


def test_the_default_policy_keeps_the_texts_whole_and_lets_nobody_starve():
    groups = (
        GROUP,
        replace(GROUP, device="pi-5", link="lte"),
        replace(GROUP, drafter="none", background=True),
    )
    result = simulate(opensled(Fleet(HUB, groups)), TRACES, replace(LONG, duration=30.0))
    finished(result)
    assert {record.user for record in result.requests if record.finish_reason} == {0, 1, 2}
