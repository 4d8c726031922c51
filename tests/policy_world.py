"""A server moved by hand on a clock of its own, and devices of every kind: late, silent, hopeless, rude, or none.

The loop's bookkeeping, the sessions and the protocol are the product's; the target is a fake, and a step takes the
seconds that the profile says. Nothing is random but what `World.random` decides.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Draft, DraftBlock, DraftToken, Prefill, Verdict
from opensled.core.protocol import Truth
from scheduler.estimates import DeviceBook
from scheduler.plan import SchedulingPolicy
from tests.fakes import VOCAB, FakeEngine, continuation
from tests.rounds import end
from tests.sessions import made
from tests.system import read_now
from verify_server.round.block_target import BlockTarget
from verify_server.round.loop import VerifyLoop
from verify_server.round.machine import StepMachine, Work
from verify_server.round.offer import DraftLimits
from verify_server.round.session import Session
from verify_server.round.step_item import StepItem
from verify_server.round.target import Target

MAX_DRAFT = 16


@dataclass
class Habits:
    """How one user's device behaves. Times in seconds."""

    link_s: float = 0.01  # each way
    draft_s: float = 0.005  # for one token
    length: int = 4  # it drafts at most; 0 = never
    right: float = 0.8  # chance of each token to be the target's
    silent_after: float = inf  # drafts
    stall_s: float = 0.0  # by which its last draft before the silence is late
    told: tuple[float, ...] = (1.0,)  # confidences of its tokens, each at random; 1 = it does not say
    rude: bool = False  # drafts although it is told not to, and as much as it likes
    leaves_after: float = inf  # tokens, after which its reader is away once
    away_s: float = 0.5


@dataclass
class User:
    """One sequence and its device."""

    habits: Habits
    session: Session
    script: list[int]  # prompt and all that the target will ever write
    truth: Truth
    stream: int = 0  # what was sent on an older one is lost
    counter: int = 0
    answered: bool = True
    begun: float = 0.0
    written: list[float] = field(default_factory=list)  # when each commit left
    present_since: float = 0.0

    @property
    def done(self) -> bool:
        return bool(self.truth.finish_reason)

    @property
    def seconds(self) -> float:
        """From the question to the last token."""
        return self.written[-1] - self.begun


class World:
    """Users and a server on one clock."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        profile: HardwareProfile,
        seed: int = 0,
        blocks: int = 4000,
        target: Target | None = None,
    ) -> None:
        """`target`: None = one over a fake engine with so many KV `blocks`."""
        self.now, self.random, self.profile = 0.0, random.Random(seed), profile
        self._lies = random.Random(seed)  # apart, so that what is told changes no draft
        target = target or BlockTarget(FakeEngine(blocks))
        self.loop = VerifyLoop(StepMachine(target, policy, profile, learns=False), lambda: self.now)
        self.users: list[User] = []
        self.longest: dict[int, float] = {}  # seconds between two commits of a present session, by its number
        self.steps = 0
        self._devices = DeviceBook()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def join(self, habits: Habits, tokens: int, prompt: int = 5, at: float = 0.0, **asked: object) -> User:
        """A user who comes at `at` with a prompt of so many tokens; `asked`: further fields of his session."""
        number = len(self.users) + 1
        start = [1 + (number + place * place) % 40 for place in range(prompt)]
        script = [*start, *continuation(start, tokens)]
        tenant = str(asked.get("tenant", "t"))
        memory = self.loop.machine.target.memory.place(tenant, 0, {})
        limits, estimate = DraftLimits(VOCAB, MAX_DRAFT), self._devices.of(tenant, "")
        session = made(number, start, tokens, memory, limits, estimate=estimate, **asked)
        user = User(habits, session, script, Truth(start), begun=at)
        self.users.append(user)
        self._later(at, lambda: self._enter(user))
        return user

    def run(self, seconds: float = 1e4) -> None:
        """Until everybody has his answer; the server must never fall asleep before."""
        while not all(user.done for user in self.users):
            assert self.now < seconds, f"not done after {self.now:.1f} s"
            self._happen(self.now)
            begun = self.loop.machine.begin(self.now)
            if isinstance(begun, Work):
                self._step(begun.items)
            else:
                self._sleep(begun.until)
        self.loop.close()

    def _step(self, work: list[StepItem]) -> None:
        self.steps += 1
        tokens = sum(len(planned.segment.tokens) for planned in work)
        contexts = sum(planned.segment.start for planned in work)
        self._happen(self.now + self.profile.cost.verify_s(tokens, contexts, len(work)))
        end(self.loop, work, self.loop.machine.target.step(work))
        for planned in work:
            if planned.check is not None:
                self._committed(self.users[planned.session.id - 1])

    def _sleep(self, wake_at: float) -> None:
        following = min(wake_at, self._events[0][0] if self._events else inf)
        assert following < inf, "the server sleeps for ever, and somebody has no answer yet"
        assert following > self.now or wake_at == inf, "it wakes and does nothing"
        self._happen(following)

    def _committed(self, user: User) -> None:
        since = max(user.present_since, user.written[-1] if user.written else user.begun)
        number = user.session.id
        self.longest[number] = max(self.longest.get(number, 0.0), self.now - since)
        user.written.append(self.now)
        self._deliver(user)

    # -- devices --------------------------------------------------------------------------------------------

    def _later(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    def _happen(self, until: float) -> None:
        """Everything up to `until`, each at its own time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def _enter(self, user: User) -> None:
        user.begun = user.present_since = self.now
        self.loop.add(user.session)
        self.loop.attach(user.session, len(user.truth))
        self._draft(user, None)

    def _deliver(self, user: User) -> None:
        """What the server has to say is on its way."""
        for _ in range(len(user.session.outbox)):
            message = read_now(user.session.outbox)
            if isinstance(message, Prefill):
                continue
            assert isinstance(message, Verdict), message
            self._travel(user, user.habits.link_s, partial(self._hear, user, message))

    def _travel(self, user: User, seconds: float, arrive: Callable[[], None]) -> None:
        """`arrive` after so many seconds, unless the stream is lost meanwhile."""
        stream = user.stream
        self._later(self.now + seconds, lambda: arrive() if user.stream == stream else None)

    def _hear(self, user: User, verdict: Verdict) -> None:
        user.truth.extend(verdict)
        user.answered = user.answered or verdict.answers == user.counter
        if user.done:
            return
        if not user.stream and len(user.truth.generated) >= user.habits.leaves_after:
            self._leave(user)
        elif user.answered:
            self._draft(user, verdict.hint)

    def _leave(self, user: User) -> None:
        user.stream += 1
        user.session.detach()
        self._later(self.now + user.habits.away_s, lambda: self._return(user))

    def _return(self, user: User) -> None:
        """With what he holds, on a new stream, which numbers its drafts anew."""
        user.counter, user.answered, user.present_since = 0, True, self.now
        self.loop.attach(user.session, len(user.truth))
        self._deliver(user)
        if not user.session.sequence.finish_reason:
            self._draft(user, None)

    def _draft(self, user: User, hint: int | None) -> None:
        habits, base = user.habits, len(user.truth)
        room = min(habits.length, len(user.script) - base - 1)
        if hint is not None and not habits.rude:
            room = min(room, hint)
        if room <= 0 or user.counter >= habits.silent_after:
            return
        ids = [self._guess(habits, id) for id in user.script[base : base + room]]
        user.counter += 1
        user.answered = False
        seconds = room * habits.draft_s
        tokens = tuple([DraftToken(id, self._told(habits)) for id in ids])
        draft = Draft(user.counter, DraftBlock(base, tokens), seconds)
        late = habits.stall_s * (user.counter == habits.silent_after)
        self._travel(user, late + seconds + habits.link_s, partial(self._submit, user, draft))

    def _guess(self, habits: Habits, right: int) -> int:
        return right if self.random.random() < habits.right else 1 + right % 40

    def _told(self, habits: Habits) -> float:
        return self._lies.choice(habits.told)

    def _submit(self, user: User, draft: Draft) -> None:
        self.loop.submit(user.session, draft)
        self._deliver(user)
