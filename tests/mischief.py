"""What may befall a server's sequences without changing a word of them: KV memory taken away every few steps, drafts
trimmed and hints given at random, links with delays of their own, devices that lie, break or fall silent.

`Witness` meanwhile holds every decision against what the target alone writes: text equality by itself would not notice
a good draft token that was not accepted.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar
from zlib import crc32

from edge_client.drafters.base import Drafter
from edge_client.link.remote import RemoteSession
from hw_profiles.step_cost import HardwareProfile, Roofline, StepCost
from opensled.core.messages import Draft, DraftToken
from opensled.core.protocol import common_prefix
from opensled.core.sampling import Sampler
from scheduler.goodput.policy import Goodput
from scheduler.plan import BatchPlan, SchedulingPolicy, SessionView, Slice, Snapshot
from tests.fakes import MemoryNetwork, Weather
from verify_server.admission.session_manager import SessionManager
from verify_server.round.machine import StepMachine
from verify_server.round.session import Session
from verify_server.round.session_view import view_of
from verify_server.round.step_item import StepItem
from verify_server.rules.base import AcceptanceResult
from verify_server.rules.decide import Outcome

HINTS = (None, 0, 1, 2, 5, 8)  # that whims give
Scripts = Mapping[tuple[tuple[int, ...], bytes], Sequence[int]]


@dataclass
class Account:
    """What a witness saw."""

    decisions: int = 0
    drafted: int = 0  # draft tokens verified
    accepted: int = 0
    hints: set[int | None] = field(default_factory=set)
    evictions: int = 0
    wrong: list[str] = field(default_factory=list)


class Witness(StepMachine):
    """A machine that takes somebody's KV memory away before every `evict_every`-th plan.

    `scripts`: by prompt and noise key, prompt and all that the target alone writes.
    """

    scripts: ClassVar[Scripts] = {}
    evict_every = 3

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.account, self._random = Account(), random.Random(1)
        self._plans = 0

    def plan(self, now: float) -> BatchPlan:
        self._plans += 1
        holders = [session for session in self.sessions.values() if session.sequence.computed]
        if holders and self._plans % self.evict_every == 0:
            self._random.choice(holders).forget_kv()
            self.account.evictions += 1
        plan = super().plan(now)
        for session in self.sessions.values():
            if (seen := session.view(now)) != view_of(session, now):
                self.account.wrong.append(f"{seen} is out of date")
        return plan

    def fit(self, slices: Sequence[Slice], now: float) -> list[StepItem]:
        work = super().fit(slices, now)
        pieces = {piece.session: piece for piece in slices}
        for planned in work:
            trim = pieces[planned.session.id].draft
            if planned.check is not None and trim is not None and len(planned.check.ids) > trim:
                self.account.wrong.append(f"{len(planned.check.ids)} draft tokens verified, not {trim}")
        return work

    def _commit(self, planned: StepItem, outcome: Outcome, now: float) -> None:
        session, before = planned.session, len(planned.session.sequence.tokens)
        super()._commit(planned, outcome, now)
        if isinstance(outcome, AcceptanceResult) and planned.check is not None:
            self._hold_against(self._script(session), planned, outcome, len(session.sequence.tokens) - before)

    def _script(self, session: Session) -> Sequence[int]:
        return self.scripts[
            tuple(session.sequence.tokens[: session.sequence.prompt_length]), session.terms.key
        ]

    def _hold_against(
        self, script: Sequence[int], planned: StepItem, decision: AcceptanceResult, committed: int
    ) -> None:
        """The head of the draft that the target would have written stands, and one token more."""
        assert planned.check is not None
        ids, position = planned.check.ids, planned.check.position
        right = common_prefix(ids, script[position:])
        account = self.account
        account.decisions += 1
        account.drafted += len(ids)
        account.accepted += decision.num_accepted
        account.hints.add(planned.hint)
        expected = min(right + 1, len(script) - position)
        if committed != expected or (decision.num_accepted != right and position + right < len(script)):
            account.wrong.append(f"at {position}: {committed} tokens instead of {expected}")


SLOW_STEPS = Roofline(read_s=0.2)  # seconds; beside such a target every device is fast


class Believes:
    """Plans as `policy` does on a target whose steps cost `cost`, whatever they cost here."""

    def __init__(self, policy: SchedulingPolicy, cost: StepCost) -> None:
        self._policy, self._cost = policy, cost

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        return self._policy.plan(snapshot, replace(profile, cost=self._cost), now)


def goodput(draft_wait: float) -> Believes:
    """On a target whose steps are slow, so that devices draft."""
    return Believes(Goodput(draft_wait), SLOW_STEPS)


class Whims:
    """A policy that plans as `policy` does, then trims drafts, gives hints and leaves sessions out as it likes.

    Pure like any other: its whims follow from what it sees.
    """

    def __init__(self, policy: SchedulingPolicy, seed: int = 0) -> None:
        self._policy, self._seed = policy, seed

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        plan = self._policy.plan(snapshot, profile, now)
        chance = random.Random(crc32(repr((self._seed, snapshot.sessions, now)).encode()))
        views = {view.id: view for view in snapshot.sessions}
        kept = [piece for piece in plan.slices if chance.random() < 0.9] or plan.slices
        return replace(plan, slices=tuple(_whim(chance, piece, views[piece.session]) for piece in kept))


def _whim(chance: random.Random, piece: Slice, view: SessionView) -> Slice:
    if not piece.decide:
        return piece
    trim = chance.choice((None, None, chance.randint(0, view.device.tokens or 0)))
    return replace(piece, draft=trim, hint=chance.choice(HINTS))


class SlowNetwork(MemoryNetwork):
    """Every message takes a time of its own, now and then a long one; none overtakes another of its stream."""

    longest = 0.02  # seconds

    def __init__(self, manager: SessionManager, weather: Weather) -> None:
        super().__init__(manager, weather)
        self._last: dict[asyncio.Queue, float] = {}  # when the latest message of each arrives

    def deliver(self, queue: asyncio.Queue, message: object) -> None:
        loop = asyncio.get_running_loop()
        seconds = self.random.choice((0.0, 0.0, self.random.random(), 1.0)) * self.longest
        # Never at the very same time: asyncio does not say which of two such calls comes first.
        at = self._last[queue] = max(self._last.get(queue, 0.0) + 1e-6, loop.time() + seconds)
        loop.call_at(at, super().deliver, queue, message)


class Silent(RemoteSession):
    """A device whose drafts get lost from the `after`-th on; what it reads arrives."""

    after = 3

    async def submit(self, draft: Draft) -> None:
        if draft.counter < self.after:
            await super().submit(draft)
        else:
            self.turn.draft(draft)  # it is sent, and lost on its way


class Liar(Drafter):
    """Drafts at random, as long as it is let, and is always sure."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._random, self._vocab_size = random.Random(seed), vocab_size

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._sampler = sampler

    def propose(self) -> Iterator[DraftToken]:
        while True:
            yield self._sampler.certain(self._random.randrange(self._vocab_size), 1.0)

    def commit(self, tokens: Sequence[int]) -> None:
        pass


class Breaking(Liar):
    """Fails after a few tokens of its second draft."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        super().__init__(vocab_size, seed)
        self._left = 7

    def propose(self) -> Iterator[DraftToken]:
        for token in super().propose():
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("broken")
            yield token
