"""The rounds of a server without clock, thread and event loop: plan, fit, commit, draft.

A driver tells it the time, lets the target compute the work, and returns the outcomes. Drivers are the server's loop
(verify_server/round/loop.py), the simulated server, and tests.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.learned import CostModel
from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import OpenSledError
from scheduler.plan import BatchPlan, SchedulingPolicy, Slice, Snapshot
from verify_server.engine.base import Segment
from verify_server.round.counters import LoopStats
from verify_server.round.draft_stage import OwnDrafts, ask_of
from verify_server.round.drafter import Ask
from verify_server.round.session import Session
from verify_server.round.step_item import StepItem
from verify_server.round.target import Target
from verify_server.rules.decide import Outcome, step_failed

log = logging.getLogger(__name__)


class Work(NamedTuple):
    """One step for the target."""

    items: list[StepItem]


class Sleep(NamedTuple):
    """There is nothing to compute until something changes, or until a time."""

    until: float  # seconds; infinity = only a change ends it


class StepMachine:
    """Owns the live sessions, in order of arrival, and the memory of the policy."""

    def __init__(
        self, target: Target, policy: SchedulingPolicy, profile: HardwareProfile, learns: bool = True
    ) -> None:
        """`learns`: whether measured steps correct the cost in `profile`."""
        self.target, self.policy, self._learns = target, policy, learns
        self.sessions: dict[int, Session] = {}
        self.stats = LoopStats()
        self.costs = CostModel(profile.cost, target.facts.row_step)
        drafters = target.drafting.drafters.values() if target.drafting else ()
        guesses = profile.drafting or tuple([each.first_cost(profile.cost) for each in drafters])
        self.drafting_costs = [DraftingCostModel(guess) for guess in guesses]
        self.profile = replace(profile, drafting=guesses)
        self.planned_at = 0.0  # when the latest step was planned
        self.left_out: frozenset[int] = frozenset()  # sessions without memory in it
        self._memory: object = None  # the policy's, from one plan to the next

    @property
    def rests(self) -> bool:
        """Whether all sessions rest, so that there is nothing to compute."""
        return all(session.rests for session in self.sessions.values())

    @property
    def awaits_draft(self) -> bool:
        """Whether any device is drafting."""
        return any(session.awaits_draft for session in self.sessions.values())

    def add(self, session: Session, now: float) -> None:
        """A session begins."""
        session.begin(self.stats, now)
        self.sessions[session.id] = session

    def remove(self, session: Session) -> None:
        """Forget a live session; if a step computes it, its memory comes back when that ends."""
        self.sessions.pop(session.id, None)
        session.closed = True
        if not session.in_step:
            session.end()
            self.target.forget(session)

    def begin(self, now: float) -> Work | Sleep:
        """The work to compute now, or how long to sleep."""
        plan = self.plan(now)
        work = self.fit(plan.slices, now)
        return Work(work) if work else Sleep(plan.wake_at)

    def plan(self, now: float) -> BatchPlan:
        """The policy's plan for the next step."""
        self.planned_at = now
        self.target.refresh(self.sessions)
        views = tuple([session.view(now) for session in self.sessions.values()])
        plan = self.policy.plan(Snapshot(views, self._memory), self.profile, now)
        self._memory = plan.memory
        return plan

    def fit(self, slices: Sequence[Slice], now: float) -> list[StepItem]:
        """The work of the slices that fit into the target's memory; the other sessions wait for the next plan."""
        work, self.left_out, preempted = self.target.fit(slices, self.sessions, now)
        self.stats.preempted += preempted
        return work

    def end(self, work: Work, outcomes: Sequence[Outcome] | None, now: float, seconds: float) -> list[Ask]:
        """Apply the outcomes of a step that took `seconds`; None = the target failed, and so does each session of it.

        Returns the drafts that the target must make, if any, before `take` and the next step.
        """
        items = work.items
        tokens = sum([len(item.segment.tokens) for item in items])
        if outcomes is None:
            outcomes = [step_failed()] * len(items)
        elif self._learns:
            self._learn([item.segment for item in items], tokens, seconds)
        self.stats.step(len(items), tokens, seconds)
        for item, outcome in zip(items, outcomes):
            self._commit(item, outcome, now)
        asks = [ask for ask in map(ask_of, items) if ask is not None]
        if not asks:
            self.target.settle()
        return asks

    def take(self, drafted: Sequence[OwnDrafts]) -> None:
        """Give the server drafts to their sessions, as far as these still exist."""
        self.target.settle()
        for drafts in drafted:
            self.stats.drafting_s += drafts.seconds
            proposals = [proposal for proposal, _ in drafts.proposals.values()]
            lengths, read = (
                [len(each.block.tokens) for each in proposals],
                sum([each.read for each in proposals]),
            )
            if lengths:
                costs = self.drafting_costs[drafts.drafter]
                costs.observe(max(lengths), sum(lengths), read, drafts.seconds)
            for id, made in drafts.proposals.items():
                session = self.sessions.get(id)
                if session is not None:
                    session.take_own(drafts.drafter, *made)
        self.profile = replace(self.profile, drafting=tuple([each.cost for each in self.drafting_costs]))

    def _learn(self, segments: Sequence[Segment], tokens: int, seconds: float) -> None:
        """Learn the cost of steps from a step that succeeded."""
        contexts = sum(segment.start * self.target.reads(segment) for segment in segments)
        self.costs.observe(tokens, contexts + tokens, len(segments), seconds)
        if self.costs.cost is not self.profile.cost:
            self.profile = replace(self.profile, cost=self.costs.cost)

    def _commit(self, item: StepItem, outcome: Outcome, now: float) -> None:
        session = item.session
        try:
            if isinstance(outcome, OpenSledError):
                raise outcome
            tokens = session.commit(item, outcome, now)
            session.observer.committed(tokens, outcome, now)
        except OpenSledError as error:
            session.in_step = False
            session.sequence.memory.withdraw()
            self.stats.failures[error.code] += 1
            log.info("a sequence ends by an error", extra={"code": error.code})
            self.remove(session)
            session.fail(error)
            return
        if session.sequence.over or session.closed:
            self.remove(session)
        elif session.reader.leaving:
            session.hand_over()
