"""The simulated server: the product's sessions and policies, steps as long as the profiles say.

The target is the recorded text: the product's acceptance rule decides with it as the target's own samples. There is no
KV memory and no thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from hw_profiles.step_cost import HardwareProfile
from opensled.errors import OpenSledError
from opensled.messages import Draft, SamplingParams, ServerMessage
from opensled.protocol import EndRules, common_prefix
from opensled_testbed.emulation.step_law import StepLaw, StepPiece
from opensled_testbed.fleet import Wish
from opensled_testbed.load.records import ServerTotals
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.server_drafter import VOCABULARY, SimulatedDrafter
from opensled_testbed.traces import ItemTrace, TraceSet
from scheduler.estimates import DeviceBook
from scheduler.plan import SchedulingPolicy, Snapshot
from verify_server.acceptance.base import AcceptanceResult, SessionScores
from verify_server.acceptance.match import Match
from verify_server.counters import LoopStats
from verify_server.draft_budget import DraftBudget, DraftRecords
from verify_server.drafting.stage import OwnDrafts
from verify_server.engine.base import Scores
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.sequence import Sequence
from verify_server.session import DraftLimits, Session, StepItem
from verify_server.session_manager import SessionLimits
from verify_server.session_timing import SessionTiming
from verify_server.step import Outcome

MAX_DRAFT = SessionLimits.max_draft


class Script:
    """One item: its recorded text, and how long it might have become."""

    __slots__ = ("alone", "item", "last", "prompt", "reason", "text", "trace")

    def __init__(self, trace: ItemTrace, last: int) -> None:
        self.trace, self.item, self.reason = trace, trace.item, trace.finish_reason
        self.prompt, self.text, self.alone = (
            len(ids) for ids in (trace.prompt_ids, trace.target_ids, trace.alone_ids)
        )
        self.last = last  # length of the text at which max_tokens would end it


def scripts(traces: TraceSet) -> list[Script]:
    """Of all items, in their order."""
    items = traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    return [Script(item, last) for item, last in zip(items, lengths)]


END = -1  # stands for the token after the recorded text, which never commits
ENDLESS = 1 << 30  # positions: no draft is cut for want of memory
NO_SCORES = cast(Scores, None)  # rule `match` asks for samples alone, and those are recorded


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


class NoKV(BlockTable):
    """Places are counted instead of blocks."""

    def __init__(self) -> None:
        super().__init__(BlockPool(0, 1))

    def grow(self, length: int) -> None: ...

    def truncate(self, length: int) -> None: ...

    def reach(self) -> int:
        return ENDLESS


class RecordedSequence(Sequence):
    """Ends where the recorded text does; how long it might have become is in `ends`."""

    def __init__(self, script: Script) -> None:
        ends = EndRules(frozenset(), frozenset(), script.prompt + script.last)
        super().__init__(script.trace.prompt_ids, script.prompt, ends, NoKV())
        self._script = script

    def decided(self, item: StepItem) -> AcceptanceResult | None:
        """What the session's acceptance rule says of the draft in a step; None = there is nothing to decide."""
        check = item.check
        if check is None:
            return None
        rest = self._script.trace.target_ids[len(self) - self.prompt_length :]
        if (
            not check.parents
        ):  # what `Match` says of a chain, without its requests: simulations are made of these
            accepted = common_prefix(check.ids, rest)
            return AcceptanceResult(accepted, rest[accepted] if accepted < len(rest) else END)
        deciding = item.session.rule.decide(check, SessionScores(NO_SCORES, 0, check))
        own: list[int] | None = None
        while True:
            try:
                request = next(deciding) if own is None else deciding.send(own)
            except StopIteration as done:
                result: AcceptanceResult = done.value
                return result
            own = _samples(rest, request.position - check.position, len(request.rows))

    def cut(self, ids: Any) -> tuple[tuple[int, ...], str]:
        left = self._script.prompt + self._script.text - len(self)
        return tuple(ids[:left]), self._script.reason if len(ids) >= left else ""


def _samples(rest: tuple[int, ...], place: int, count: int) -> list[int]:
    """The target's own tokens behind the first `place` tokens of the text that is to come, if they were drafted right;
    those behind a wrong one never count."""
    found = list(rest[place : place + count])
    return found + [END] * (count - len(found))


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
        self._devices, self._records, self._stats = DeviceBook(), DraftRecords(), LoopStats()
        self.totals = ServerTotals()

    # -- what devices send ------------------------------------------------------------------------------

    def open(self, reader: Reader) -> None:
        """A sequence begins; refused when all places are taken."""
        if len(self._sessions) >= self._places:
            reader.refused()
            return
        self._opened += 1
        session = self._session(reader)
        session.timing.begin(self._events.now)
        session.attach(len(session.sequence))
        self._readers[session], self._sessions[session.id] = reader, session
        self._changed(session)
        reader.opened(session)
        self._wake()

    def _session(self, reader: Reader) -> Session:
        wish = reader.wish
        return Session(
            self._opened,
            "",
            RecordedSequence(reader.script),
            SamplingParams(temperature=0),
            b"",
            Match(),
            DraftLimits(VOCABULARY, MAX_DRAFT, SessionLimits.max_tree, continuations=True),
            background=wish.background,
            own=self._drafter.own_draft() if self._drafter else None,
            budget=DraftBudget(record=self._records.of("", wish.device), floor=SessionLimits.min_acceptance),
            timing=SessionTiming(self._devices.of("", wish.device), wish.pace),
            stats=self._stats,
        )

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
        if plan.slices:
            self._start([self._sessions[piece.session].plan(piece, now) for piece in plan.slices])
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
        outcomes = [_decided(item) for item in work]
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
        if session.sequence.finish_reason:
            del self._sessions[session.id], self._readers[session]
            if self._drafter:
                self._drafter.forget(session.id)


def _decided(item: StepItem) -> Outcome:
    assert isinstance(item.session.sequence, RecordedSequence)
    return item.session.sequence.decided(item)
