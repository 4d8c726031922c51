"""The simulated server: the product's sessions and policies, steps as long as the profiles say.

What the target says is recorded (sequences.py). Each session holds one place of the KV memory; what is left is for the
guests of a draft model. There is no thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Protocol

from hw_profiles.step_cost import HardwareProfile
from lab.testbed.emulation.recorded_drafter import drafter_of
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.fleet import Wish
from lab.testbed.load.records import ServerTotals
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.sequences import Decides, RecordedSequence, Script, decided
from lab.testbed.traces import ItemTrace
from opensled.core.errors import OpenSledError
from opensled.core.messages import Draft, Limits, Prefill, SamplingParams, ServerMessage
from scheduler.estimates import DeviceBook
from scheduler.plan import SchedulingPolicy, Slice
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.base import EngineInfo
from verify_server.kv.blocks import BlockPool
from verify_server.kv.memory import ENDLESS, TargetMemory
from verify_server.round.budget import MIN_ACCEPTANCE, DraftBudget, DraftRecords
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.draft_stage import DraftStage, OwnDrafts
from verify_server.round.drafter import Ask
from verify_server.round.machine import StepMachine, Work
from verify_server.round.offer import DraftLimits
from verify_server.round.session import Session
from verify_server.round.session_timing import SessionTiming
from verify_server.round.sources import DraftSources
from verify_server.round.step_item import StepItem
from verify_server.round.target import FittedStep, Target
from verify_server.round.terms import Terms
from verify_server.rules.decide import Outcome
from verify_server.rules.match import Match

MAX_DRAFT = SessionLimits.max_draft
VOCABULARY = 1 << 31  # ids of recorded tokens are not checked again


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


class RecordedTarget(Target):
    """What it says is recorded, and a session never outgrows its place."""

    facts = EngineInfo("recorded", VOCABULARY, ENDLESS, (), "fast", "", "simulated", 0, 1)

    def __init__(self, drafting: DraftStage | None, places: int, law: StepLaw) -> None:
        self.drafting, self.memory, self._held = drafting, TargetMemory(), dict[int, list[int]]()
        # Sessions for whose draft there is room in the place of one session
        self._guests = ceil(law.target.kv_bytes / law.draft.kv_bytes) if law.draft else 0
        self._pool = BlockPool(places * self._guests, ENDLESS)
        if drafting is not None:
            drafting.lodge(self._pool)

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """See `Target`; a new session takes its place."""
        for piece in slices:
            if piece.session not in self._held:
                self._held[piece.session] = self._pool.take(self._guests)
        return super().fit(slices, sessions, now)

    def forget(self, session: Session) -> None:
        """See `Target`."""
        super().forget(session)
        self._pool.give_back(self._held.pop(session.id, ()))

    def step(self, work: Sequence[StepItem]) -> Sequence[Outcome]:
        """What was recorded."""
        return [decided(item) for item in work]

    def draft(self, asks: Sequence[Ask]) -> list[OwnDrafts]:
        """See `drafting_of`."""
        [drafted] = super().draft(asks)
        assert len(drafted.proposals) == len(asks), "the drafter failed, its log says why"
        return [drafted]


def drafting_of(law: StepLaw, items: Iterable[ItemTrace]) -> DraftStage:
    """The product's stage over recorded drafts of `items`, in the time that their passes take."""
    spent_s = 0.0

    def spend(seconds: float) -> None:
        nonlocal spent_s
        spent_s += seconds

    return DraftStage({"recorded": drafter_of(items, law, spend)}, VOCABULARY, lambda: spent_s)


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
        drafting: DraftStage | None = None,
    ) -> None:
        """`profile`: what the policy reckons with; None = the law itself."""
        self._events, self._law, self._places = events, law, places
        self._overhead, self._drafting = overhead, drafting
        target = RecordedTarget(drafting, places, law)
        profile = profile or HardwareProfile(cost=law.cost, drafting=(law.drafting,) if law.drafting else ())
        self._machine = StepMachine(target, policy, profile, learns=False)
        self._readers: dict[Session, Reader] = {}
        self._opened = 0
        self._is_busy = False  # a step is under way, or the next plan is due at this very moment
        self._alarm = 0  # number of the latest alarm; older ones do not ring
        self._devices = DeviceBook()
        self._records = DraftRecords(lambda: events.now)
        self.totals = ServerTotals()

    # -- what devices send ------------------------------------------------------------------------------

    def open(self, reader: Reader) -> None:
        """A sequence begins; refused when all places are taken."""
        if self.free > 0:
            self.enter(reader, RecordedSequence(reader.script), SessionLimits.max_tree)
        else:
            reader.refused()

    @property
    def free(self) -> int:
        """Places for more sequences."""
        return self._places - len(self._machine.sessions)

    def limits_of(self, script: Script) -> Limits:
        """What a device is told when a sequence is opened."""
        return Limits(MAX_DRAFT, script.prompt + script.last)

    def enter(self, reader: Reader, sequence: Decides, max_tree: int = 0) -> Session:
        """The session of a reader begins; `max_tree`: tokens of its draft trees, 0 = chains only."""
        session = self._session(reader.wish, sequence, max_tree)
        self._machine.add(session, self._events.now)
        session.attach(len(session.sequence))
        self._readers[session] = reader
        self._tell(session)
        reader.opened(session)
        self._wake()
        return session

    def _session(self, wish: Wish, sequence: Decides, max_tree: int) -> Session:
        self._opened += 1
        budget = DraftBudget(record=self._records.of("", wish.device), floor=MIN_ACCEPTANCE)
        device = DeviceDrafts(self._devices.of("", wish.device), budget)
        servers = self._drafting.sources("") if self._drafting else ()
        return Session(
            self._opened,
            "",
            sequence,
            Terms(SamplingParams(temperature=0), b"", Match(), background=wish.background),
            DraftSources(DraftLimits(VOCABULARY, MAX_DRAFT, max_tree), device, servers),
            timing=SessionTiming(wish.pace),
        )

    def submit(self, arrived: tuple[Session, Draft]) -> None:
        """Take a draft; a session that is finished hears nothing more."""
        session, draft = arrived
        if session.id in self._machine.sessions:
            session.submit(draft, self._events.now)
            self._tell(session)
            self._wake()

    def changed(self, session: Session) -> None:
        """Something from outside has changed it."""
        self._tell(session)
        self._forget(session)
        self._wake()

    def _tell(self, session: Session) -> None:
        """Its messages leave."""
        for message in session.outbox.drain():
            assert message is not None, "one stream serves a simulated session"
            if not isinstance(message, Prefill):  # which changes nothing at a device
                self._readers[session].told(message)
        self.totals.stale_drafts = self._machine.stats.stale

    # -- steps ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Plan, once everything that arrives at this moment is there."""
        if not self._is_busy:
            self._is_busy = True
            self._events.at(self._events.now, self._plan, last=True)

    def _plan(self, _: Any) -> None:
        begun = self._machine.begin(self._events.now)
        if isinstance(begun, Work) or self._law.others:
            self._start(begun if isinstance(begun, Work) else Work([]))
            return
        self._is_busy = False
        self._alarm += 1
        if begun.until < inf:
            assert begun.until > self._events.now, "a policy that plans nothing must sleep"
            self._events.at(begun.until, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._wake()

    def _start(self, work: Work) -> None:
        overhead = self._overhead
        seconds = self._law.step_s([StepPiece.of(item.segment) for item in work.items])
        seconds += overhead.step_s + len(work.items) * overhead.session_s
        outcomes = self._machine.target.step(work.items)
        self._events.at(self._events.now + seconds, self._end, (work, outcomes, seconds))

    def _end(self, done: tuple[Work, Sequence[Outcome], float]) -> None:
        """Verdicts leave, then the server drafts for the next step."""
        work, outcomes, seconds = done
        machine, totals = self._machine, self.totals
        assert not any(isinstance(outcome, OpenSledError) for outcome in outcomes), (
            "a simulated step has no errors"
        )
        asks = machine.end(work, outcomes, self._events.now, seconds)
        totals.steps += 1
        totals.busy_s += seconds
        totals.step_sessions += len(work.items)
        totals.positions += sum([len(item.segment.tokens) for item in work.items])
        totals.tokens = machine.stats.tokens
        for item in work.items:
            self._tell(item.session)
            self._forget(item.session)
        if asks:
            [drafted] = machine.target.draft(asks)
            totals.busy_s += drafted.seconds
            totals.drafting_s += drafted.seconds
            self._events.at(self._events.now + drafted.seconds, self._take, drafted)
        else:
            self._events.at(self._events.now, self._plan, last=True)

    def _take(self, drafted: OwnDrafts) -> None:
        """The server's drafts wait for the next step."""
        self._machine.take([drafted])
        self._events.at(self._events.now, self._plan, last=True)

    def _forget(self, session: Session) -> None:
        """Its reader hears nothing more if it is over."""
        if session.sequence.over:
            self._machine.remove(session)
            self._readers.pop(session, None)
