"""One soak from start to end: targets, truths, fleets, nemeses, and the judgement."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from lab.testbed.soak.account import Account
from lab.testbed.soak.clocks import StepClock
from lab.testbed.soak.faults import FAULTS, Ground, faults_of
from lab.testbed.soak.fleet import fleet_of
from lab.testbed.soak.judge import Judge
from lab.testbed.soak.kept_text import check_kept
from lab.testbed.soak.kinds import KINDS, TargetKind
from lab.testbed.soak.nemesis import Nemesis, Schedule
from lab.testbed.soak.picture_questions import picture_questions
from lab.testbed.soak.questions import Course, Question, course_of, questions
from lab.testbed.soak.readers import Reader
from lab.testbed.soak.report import Report
from lab.testbed.soak.target import FLEET, NEIGHBOUR, Place, SoakTarget, private_file
from lab.testbed.soak.targets import target_of

log = logging.getLogger(__name__)

FINISH_S = 150.0  # for the answers under way at the end
PROGRESS_S = 60.0
GUEST_LIMITS = "max_sessions=8"


@dataclass(frozen=True)
class Soak:
    """What is asked for. `faults`: names; () = all."""

    minutes: float
    seed: int
    targets: Sequence[TargetKind]
    faults: Sequence[str] = ()
    questions: int = 16  # to each target; every one has a truth of its own
    at_once: int = len(KINDS)  # targets; one group of so many after another, each with a share of the minutes

    @property
    def groups(self) -> list[Sequence[TargetKind]]:
        return [
            self.targets[first : first + self.at_once] for first in range(0, len(self.targets), self.at_once)
        ]


@dataclass
class Front:
    """One target, and everything that happens at it."""

    target: SoakTarget
    account: Account
    course: Course
    ground: Ground

    @property
    def readers(self) -> Sequence[Reader]:
        return self.ground.readers


class SoakRun:
    """A soak in a folder of its own, for logs, clocks and tokens."""

    def __init__(self, soak: Soak, folder: Path) -> None:
        self._soak, self._folder = soak, folder
        self._token, self._neighbour, self._guest = (secrets.token_hex(16) for _ in range(3))
        chosen = soak.faults or tuple(FAULTS)
        self._kinds = {name: strike for name, strike in FAULTS.items() if name in chosen}

    @property
    def _seconds(self) -> float:
        """In which faults strike one group of targets."""
        return 60 * self._soak.minutes / len(self._soak.groups)

    async def run(self) -> Report:
        """All of it. Raises OpenSledError when a target does not start."""
        fronts: list[Front] = []
        seconds = 0.0
        for kinds in self._soak.groups:
            async with AsyncExitStack() as stack:
                fronts_now = await self._fronts(kinds, len(fronts), stack)
                log.info("%d targets answer; the nemesis begins", len(fronts_now))
                started = time.monotonic()
                await self._torment(fronts_now)
                seconds += time.monotonic() - started
            fronts += fronts_now
        await asyncio.to_thread(self._judge, fronts)
        accounts = {front.target.name: front.account for front in fronts}
        return Report(accounts, list(self._kinds), seconds)

    async def _fronts(self, kinds: Sequence[TargetKind], first: int, stack: AsyncExitStack) -> list[Front]:
        """Targets from number `first` on, each with its truths and its fleet.

        Truths are taken one target after another, all else at rest.
        """
        targets = [self._target(kind) for kind in kinds]
        for target in targets:
            log.info("starting %s", target.name)
            stack.push_async_callback(asyncio.to_thread, target.stop)
            await asyncio.to_thread(target.start)
        courses = [
            await course_of(target.origin, self._token, self._asked_of(target.kind)) for target in targets
        ]
        return [
            await self._front(number, target, course, stack)
            for number, (target, course) in enumerate(zip(targets, courses), first)
        ]

    async def _front(self, number: int, target: SoakTarget, course: Course, stack: AsyncExitStack) -> Front:
        account, seed = Account(time.monotonic), self._soak.seed
        tokens = (self._token, self._neighbour)
        readers = await fleet_of(target, course, account, tokens, number, seed, stack)
        ground = Ground(target, readers, account, self._guest, random.Random(1000 * seed + number))
        return Front(target, account, course, ground)

    def _asked_of(self, kind: TargetKind) -> list[Question]:
        asked = picture_questions if kind.sees else questions
        return asked(self._soak.questions, self._soak.seed)

    def _target(self, kind: TargetKind) -> SoakTarget:
        folder = self._folder / kind.name
        folder.mkdir()
        agreed = " keep=1" if kind.keeps else ""
        tenants = f"{self._token} {FLEET}{agreed}\n{self._neighbour} {NEIGHBOUR}\n{self._guest} guest {GUEST_LIMITS}\n"
        tokens = private_file(folder / "tokens", tenants)
        place = Place(folder, StepClock(folder / "clock"), tokens)
        return target_of(kind, place)

    async def _torment(self, fronts: Sequence[Front]) -> None:
        """Readers ask and nemeses strike until the time is over; then the answers under way come to their end."""
        end = time.monotonic() + self._seconds
        asking = [asyncio.ensure_future(reader.run()) for front in fronts for reader in front.readers]
        telling = asyncio.ensure_future(_tell(fronts))
        try:
            await asyncio.gather(
                *(self._nemesis(front, number / len(fronts)).run() for number, front in enumerate(fronts))
            )
            await asyncio.sleep(max(0.0, end - time.monotonic()))
            await _finish(fronts, asking)
        finally:
            for task in (*asking, telling):
                task.cancel()
            await asyncio.gather(*asking, telling, return_exceptions=True)

    def _nemesis(self, front: Front, offset: float) -> Nemesis:
        kinds = faults_of(front.target.kind, self._kinds)
        return Nemesis(front.ground, kinds, Schedule(self._seconds, len(kinds)), offset)

    def _judge(self, fronts: Sequence[Front]) -> None:
        log.info("the reference writes the truths again")
        judges = {kind.model: Judge(kind) for kind in self._soak.targets}
        for front in fronts:
            engine, judge = front.target.kind.engine, judges[front.target.kind.model]
            front.account.wrongs += judge.truths(front.course, engine)
            judge.settle(front.account, front.course, engine)
            if front.target.kind.keeps:
                check_kept(front.target, front.course, front.account)


async def _finish(fronts: Sequence[Front], asking: Sequence[asyncio.Future[None]]) -> None:
    """Let every reader finish its answer."""
    for front in fronts:
        for reader in front.readers:
            reader.stop()
    _, late = await asyncio.wait(asking, timeout=FINISH_S)
    if late:
        fronts[0].account.wrong(f"{len(late)} readers have no end of their answer after {FINISH_S:g} s")


async def _tell(fronts: Sequence[Front]) -> None:
    """Now and then, how far it is."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        accounts = [front.account for front in fronts]
        log.info(
            "%d answers, %d tokens, %d faults, %d suspects, %d wrongs",
            sum(account.answers for account in accounts),
            sum(account.tokens for account in accounts),
            sum(len(account.windows) for account in accounts),
            sum(len(account.suspects) for account in accounts),
            sum(len(account.wrongs) for account in accounts),
        )
