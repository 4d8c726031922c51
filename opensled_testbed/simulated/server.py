"""The simulated server: the product's sessions and policies, steps as long as the profiles say.

What the target says is recorded (sequences.py). There is no KV memory and no thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from hw_profiles.step_cost import HardwareProfile
from opensled.errors import OpenSledError
from opensled.messages import Draft, Limits, Prefill, SamplingParams, ServerMessage
from opensled_testbed.emulation.step_law import StepLaw, StepPiece
from opensled_testbed.fleet import Wish
from opensled_testbed.load.records import ServerTotals
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.sequences import RecordedSequence, Script, decided
from opensled_testbed.simulated.server_drafter import VOCABULARY, SimulatedDrafter
from scheduler.estimates import DeviceBook
from scheduler.plan import SchedulingPolicy, Snapshot
from verify_server.acceptance.match import Match
from verify_server.counters import LoopStats
from verify_server.draft_budget import MIN_ACCEPTANCE, DraftBudget, DraftRecords
from verify_server.drafting.stage import OwnDrafts
from verify_server.session import DraftLimits, Session, StepItem
from verify_server.session_manager import SessionLimits
from verify_server.session_timing import SessionTiming
from verify_server.step import Outcome

MAX_DRAFT = SessionLimits.max_draft


class Reader(Protocol):
    """The device's end of a session; messages to it travel its own link."""

    script: Script
    wish: Wish

    def refused(self) -> None:
        """All places are taken."""

    def opened(self, session: Session) -> None:
        """The session exists; its hint is for the first block."""

    def told(self, message: ServerMessage) -> None:
        """A message of the session leaves."""


@dataclass(frozen=True)
class Overhead:
    """What a real server adds to its engine's steps, in emulated seconds."""

    step_s: float = 0.0  # of each step: planning, the hop to the engine's thread
    session_s: float = 0.0  # of each session in a step: messages, commit


class SimulatedServer:
    """One engine: steps one after another, each over the sessions that the policy names."""

    def __init__(
        self,
        events: Events,
        law: StepLaw,
        policy: SchedulingPolicy,
        places: int,
        overhead: Overhead = Overhead(),
        profile: HardwareProfile | None = None,
        drafter: SimulatedDrafter | None = None,
    ) -> None:
        """`profile`: what the policy reckons with; None = the law itself."""
        self._events, self._law, self._policy, self._places = events, law, policy, places
        self._overhead, self._drafter = overhead, drafter
        self._profile = profile or HardwareProfile(cost=law.cost, drafting=law.drafting)
        self._readers: dict[Session, Reader] = {}
        self._sessions: dict[int, Session] = {}
        self._opened = 0
        self._is_busy = False  # a step is under way, or the next plan is due at this very moment
        self._alarm = 0  # number of the latest alarm; older ones do not ring
        self._memory: object = None  # the policy's, from one plan to the next
        self._devices, self._stats = DeviceBook(), LoopStats()
        self._records = DraftRecords(lambda: events.now)
        self.totals = ServerTotals()

    # -- what devices send ------------------------------------------------------------------------------

    def open(self, reader: Reader) -> None:
        """A sequence begins; refused when all places are taken."""
        if len(self._sessions) >= self._places:
            reader.refused()
        else:
            self._begin(reader, self._session(reader))

    def limits_of(self, script: Script) -> Limits:
        """What a device is told when a sequence is opened."""
        return Limits(MAX_DRAFT, script.prompt + script.last)

    def _begin(self, reader: Reader, session: Session) -> None:
        session.timing.begin(self._events.now)
        session.attach(len(session.sequence))
        self._readers[session], self._sessions[session.id] = reader, session
        self._changed(session)
        reader.opened(session)
        self._wake()

    def _session(self, reader: Reader) -> Session:
        wish = reader.wish
        return Session(
            self._number(),
            "",
            RecordedSequence(reader.script),
            SamplingParams(temperature=0),
            b"",
            Match(),
            DraftLimits(VOCABULARY, MAX_DRAFT, SessionLimits.max_tree),
            background=wish.background,
            own=self._drafter.own_draft() if self._drafter else None,
            budget=DraftBudget(record=self._records.of("", wish.device), floor=MIN_ACCEPTANCE),
            timing=SessionTiming(self._devices.of("", wish.device), wish.pace),
            stats=self._stats,
        )

    def _number(self) -> int:
        """Of a new session."""
        self._opened += 1
        return self._opened

    def submit(self, arrived: tuple[Session, Draft]) -> None:
        """Take a draft; a session that is finished hears nothing more."""
        session, draft = arrived
        if session.id in self._sessions:
            session.submit(draft, self._events.now)
            self._changed(session)
            self._wake()

    def _changed(self, session: Session) -> None:
        """Its messages leave."""
        for message in session.outbox.drain():
            assert message is not None, "one stream serves a simulated session"
            if not isinstance(message, Prefill):  # which changes nothing at a device
                self._readers[session].told(message)
        self.totals.stale_drafts = self._stats.stale

    # -- steps ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Plan, once everything that arrives at this moment is there."""
        if not self._is_busy:
            self._is_busy = True
            self._events.at(self._events.now, self._plan, last=True)

    def _plan(self, _: Any) -> None:
        now = self._events.now
        views = tuple([session.view(now) for session in self._sessions.values()])
        plan = self._policy.plan(Snapshot(views, self._memory), self._profile, now)
        self._memory = plan.memory
        work = [self._sessions[piece.session].plan(piece, now) for piece in plan.slices]
        if work or self._law.others:
            self._start(work)
            return
        self._is_busy = False
        self._alarm += 1
        if plan.wake_at is not None:
            assert plan.wake_at > now, "a policy that plans nothing must sleep"
            self._events.at(plan.wake_at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._wake()

    def _start(self, work: list[StepItem]) -> None:
        overhead = self._overhead
        seconds = self._law.step_s([StepPiece.of(item.segment) for item in work])
        seconds += overhead.step_s + len(work) * overhead.session_s
        outcomes = [decided(item) for item in work]
        self._events.at(self._events.now + seconds, self._end, (work, outcomes, seconds))

    def _end(self, done: tuple[list[StepItem], list[Outcome], float]) -> None:
        """Verdicts leave, then the server drafts for the next step."""
        work, outcomes, seconds = done
        totals = self.totals
        totals.steps += 1
        totals.busy_s += seconds
        totals.step_sessions += len(work)
        totals.positions += sum([len(item.segment.tokens) for item in work])
        for item, outcome in zip(work, outcomes):
            self._commit(item, outcome)
        drafted = self._drafter.after(work) if self._drafter else None
        if self._drafter and drafted and drafted.proposals:
            self._profile = replace(self._profile, drafting=self._drafter.cost)
            totals.busy_s += drafted.seconds
            totals.drafting_s += drafted.seconds
            self._events.at(self._events.now + drafted.seconds, self._take, drafted)
        else:
            self._events.at(self._events.now, self._plan, last=True)

    def _take(self, drafted: OwnDrafts) -> None:
        """The server's drafts wait for the next step."""
        for id, made in drafted.proposals.items():
            session = self._sessions[id]
            session.take_own(*made)
            self._changed(session)
        self._events.at(self._events.now, self._plan, last=True)

    def _commit(self, item: StepItem, outcome: Outcome) -> None:
        session = item.session
        assert not isinstance(outcome, OpenSledError), "a simulated step has no errors"
        self.totals.tokens += session.commit(item, outcome, self._events.now)
        self._changed(session)
        if session.sequence.over:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        """It is over."""
        del self._sessions[session.id], self._readers[session]
        if self._drafter:
            self._drafter.forget(session.id)
