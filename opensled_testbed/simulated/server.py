"""The simulated server: sessions by the product's position rules, steps by its policies, seconds by the profiles.

It follows verify_server/{session,loop}.py line by line without tokens: a text is known, so every commit is a length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hw_profiles.profile import HardwareProfile
from opensled_testbed.emulation.law import Piece, StepLaw
from opensled_testbed.load.records import ServerTotals
from opensled_testbed.simulated.drafts import Block, Script
from opensled_testbed.simulated.events import Events
from scheduler.plan import SchedulingPolicy, SessionView, Slice, Snapshot


@dataclass(frozen=True)
class Overhead:
    """What a real server adds to its engine's steps, in emulated seconds."""

    step_s: float = 0.0  # of each step: planning, the hop to the engine's thread
    session_s: float = 0.0  # of each session in a step: messages, commit


class Reader(Protocol):
    """The device's end of a session; messages to it travel its own link."""

    def refused(self) -> None:
        """All places are taken."""

    def opened(self) -> None:
        """The session exists."""

    def told(self, base: int, end: int, answers: Block | None) -> None:
        """The truth is `end` tokens of the text, of which those since `base` are sent; it answers that block."""


class Session:
    """The server's truth about one sequence. Lengths count tokens of the text; the prompt comes before it."""

    __slots__ = ("committed", "computed", "driven", "id", "pending", "reader", "script", "since")

    def __init__(self, reader: Reader, script: Script) -> None:
        self.reader, self.script = reader, script
        self.id = 0
        self.committed = 0  # tokens of the text
        self.computed = 0  # positions in the KV cache, prompt included
        self.pending: Block | None = None
        self.driven = True
        self.since = 0.0  # when its last verdict left

    @property
    def finished(self) -> bool:
        return self.committed == self.script.text

    def view(self) -> SessionView:
        block = self.pending
        return SessionView(
            self.id,
            self.script.prompt + self.committed - self.computed,
            None if block is None else block.base + block.tokens - self.committed,
            self.driven,
            self.since,
        )


class Planned(NamedTuple):
    """What a step computes for one session."""

    session: Session
    piece: Piece
    decides: bool
    block: Block | None  # the draft it answers


class SimulatedServer:
    """One engine: steps one after another, each over the sessions that the policy names."""

    def __init__(
        self,
        events: Events,
        law: StepLaw,
        policy: SchedulingPolicy,
        places: int,
        overhead: Overhead = Overhead(),
        profile: HardwareProfile = HardwareProfile(),
    ) -> None:
        self._events, self._law, self._policy, self._places = events, law, policy, places
        self._overhead, self._profile = overhead, profile
        self._sessions: dict[int, Session] = {}
        self._views: dict[int, SessionView] = {}  # in order of arrival; made anew when a session changes
        self._opened = 0
        self._busy = False  # a step is under way, or the next plan is due at this very moment
        self._alarm = 0  # number of the latest alarm; older ones do not ring
        self.totals = ServerTotals()

    # -- what devices send ------------------------------------------------------------------------------

    def open(self, session: Session) -> None:
        """A sequence begins; refused when all places are taken."""
        if len(self._sessions) >= self._places:
            session.reader.refused()
            return
        self._opened += 1
        session.id = self._opened
        session.since = self._events.now
        self._sessions[session.id] = session
        self._views[session.id] = session.view()
        session.reader.opened()
        self._wake()

    def submit(self, arrived: tuple[Session, Block]) -> None:
        """Take a draft by the position rules (`Session.submit`)."""
        session, block = arrived
        if session.finished:
            return
        session.driven = not block.tokens
        if block.rest_at(session.committed) is None:
            self._drop(session, block)
        else:
            session.pending = block if block.tokens else None
        self._views[session.id] = session.view()
        self._wake()

    def _drop(self, session: Session, block: Block) -> None:
        """Answer a draft that came too late."""
        if not session.finished:
            self.totals.stale_drafts += bool(block.tokens)
        session.reader.told(block.base, session.committed, block)

    # -- steps ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Plan, once everything that arrives at this moment is there."""
        if not self._busy:
            self._busy = True
            self._events.at(self._events.now, self._plan, last=True)

    def _plan(self, _: Any) -> None:
        now = self._events.now
        plan = self._policy.plan(Snapshot(tuple(self._views.values())), self._profile, now)
        if plan.slices:
            self._start([self._planned(piece) for piece in plan.slices])
            return
        self._busy = False
        self._alarm += 1
        if plan.wake_at is not None:
            assert plan.wake_at > now, "a policy that plans nothing must sleep"
            self._events.at(plan.wake_at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._wake()

    def _planned(self, piece: Slice) -> Planned:
        """`Session.plan`: draft tokens that cannot commit any more are left out, padding goes over what is there."""
        session = self._sessions[piece.session]
        stop = session.computed + piece.tokens
        block, drafted = None, 0
        if piece.decide:
            block, session.pending = session.pending, None
            if block is not None:
                rest = block.base + block.tokens - session.committed
                drafted = min(rest, max(0, session.script.last - session.committed - 1))
        tokens = piece.tokens + min(piece.padding, session.computed) + drafted
        return Planned(session, Piece(tokens, stop + drafted, drafted), piece.decide, block)

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
        """`Session.commit`: what agrees with the text, and one token more; never beyond its end."""
        session, piece, block = planned.session, planned.piece, planned.block
        if not planned.decides:
            session.computed = piece.end
            self._views[session.id] = session.view()
            return
        script, base = session.script, session.committed
        accepted = min(block.base + block.reach - base, piece.drafted) if block else 0
        session.committed = min(base + accepted + 1, script.text)
        session.computed = script.prompt + min(base + accepted, session.committed - 1)
        session.since = self._events.now
        self.totals.tokens += session.committed - base
        session.reader.told(block.base if block else base, session.committed, block)
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
