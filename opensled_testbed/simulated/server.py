"""The simulated server: sessions by the product's position rules, steps by its policies, seconds by the profiles.

It follows verify_server/loop.py, and session.py beside it verify_server/session.py, line by line without tokens: a text
is known, so every commit is a length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hw_profiles.profile import HardwareProfile
from opensled_testbed.emulation.step_law import StepLaw
from opensled_testbed.load.records import ServerTotals
from opensled_testbed.simulated.drafts import Block
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.session import Planned, Session
from scheduler.estimates import DeviceBook
from scheduler.plan import SchedulingPolicy, SessionView, Snapshot
from verify_server.draft_budget import DraftRecords


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
    ) -> None:
        """`profile`: what the policy reckons with; None = the law itself."""
        self._events, self._law, self._policy, self._places = events, law, policy, places
        self._overhead, self._profile = overhead, profile or HardwareProfile(cost=law.cost)
        self._sessions: dict[int, Session] = {}
        self._views: dict[int, SessionView] = {}  # in order of arrival; made anew when a session changes
        self._opened = 0
        self._busy = False  # a step is under way, or the next plan is due at this very moment
        self._alarm = 0  # number of the latest alarm; older ones do not ring
        self._memory: object = None  # the policy's, from one plan to the next
        self._devices, self._records = DeviceBook(), DraftRecords()
        self.totals = ServerTotals()

    # -- what devices send ------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """A sequence begins; refused when all places are taken."""
        if len(self._sessions) >= self._places:
            session.reader.refused()
            return
        self._opened += 1
        device = session.wish.device
        session.begin(
            self._opened, self._devices.of("", device), self._records.of("", device), self._events.now
        )
        self._sessions[session.id] = session
        self._views[session.id] = session.view()
        session.reader.opened(session.hint)
        self._wake()

    def submit(self, arrived: tuple[Session, Block, float]) -> None:
        """Take a draft, and the seconds it took, by the position rules (`Session.submit`)."""
        session, block, seconds = arrived
        if session.finished:
            return
        if not session.submit(block, seconds, self._events.now):
            self._drop(session, block)
        self._views[session.id] = session.view()
        self._wake()

    def _drop(self, session: Session, block: Block) -> None:
        """Answer a draft that came too late."""
        if not session.finished:
            self.totals.stale_drafts += bool(block.tokens)
            session.drop(block, self._events.now)
        session.reader.told(block.base, session.committed, block, session.hint)

    # -- steps ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Plan, once everything that arrives at this moment is there."""
        if not self._busy:
            self._busy = True
            self._events.at(self._events.now, self._plan, last=True)

    def _plan(self, _: Any) -> None:
        now = self._events.now
        plan = self._policy.plan(Snapshot(tuple(self._views.values()), self._memory), self._profile, now)
        self._memory = plan.memory
        if plan.slices:
            self._start([self._sessions[piece.session].plan(piece) for piece in plan.slices])
            return
        self._busy = False
        self._alarm += 1
        if plan.wake_at is not None:
            assert plan.wake_at > now, "a policy that plans nothing must sleep"
            self._events.at(plan.wake_at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._wake()

    def _start(self, work: list[Planned]) -> None:
        overhead = self._overhead
        seconds = self._law.step_s([planned.piece for planned in work])
        seconds += overhead.step_s + len(work) * overhead.session_s
        self._events.at(self._events.now + seconds, self._end, (work, seconds))

    def _end(self, done: tuple[list[Planned], float]) -> None:
        work, seconds = done
        totals = self.totals
        totals.steps += 1
        totals.busy_s += seconds
        totals.step_sessions += len(work)
        totals.positions += sum([planned.piece.tokens for planned in work])
        for planned in work:
            self._commit(planned)
        self._events.at(self._events.now, self._plan, last=True)

    def _commit(self, planned: Planned) -> None:
        session = planned.session
        self.totals.tokens += session.commit(planned, self._events.now)
        if planned.decides:
            self._meet_pending(session)
        if session.finished:
            del self._sessions[session.id], self._views[session.id]
        else:
            self._views[session.id] = session.view()

    def _meet_pending(self, session: Session) -> None:
        """A draft that arrived during the step meets the new truth."""
        block = session.pending
        if block is not None and (session.finished or block.rest_at(session.committed) is None):
            session.pending = None
            self._drop(session, block)
