"""The server's loop: plan, one forward pass for all sessions, commit, draft. One event loop, one engine thread.

Whatever touches the engine runs in `EngineThread`, one call after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.learned import CostModel
from hw_profiles.step_cost import DraftingCost, HardwareProfile
from opensled.errors import EngineLost, OpenSledError
from opensled.messages import Draft
from scheduler.plan import BatchPlan, SchedulingPolicy, Snapshot
from verify_server.counters import LoopStats
from verify_server.drafting.stage import DraftStage, OwnDrafts, asked_of
from verify_server.engine.base import Segment, TargetEngine
from verify_server.kv.blocks import BlockPool
from verify_server.kv.preemption import KVPreemptor
from verify_server.kv.twins import adopts
from verify_server.outbox import Outbox
from verify_server.session import Session, StepItem
from verify_server.step import Outcome, run_step, step_failed
from verify_server.trees import runs

log = logging.getLogger(__name__)

P = ParamSpec("P")  # of a call in the engine's thread
T = TypeVar("T")  # and its result
# Turns of the event loop, some microseconds each, for which a step waits for drafts that are arriving. Chosen: a hop to
# the engine's thread and back costs as much as two rounds of a session.
GATHER_TURNS = 8


class VerifyLoop:
    """Owns the live sessions, in order of arrival, and the only thread that touches the engine."""

    def __init__(
        self,
        engine: TargetEngine,
        policy: SchedulingPolicy,
        profile: HardwareProfile,
        clock: Callable[[], float],
        prefix_cache: bool = True,
        prefix_key: bytes = b"",
        drafting: DraftStage | None = None,
    ) -> None:
        """`clock`: in seconds. `prefix_cache`: share KV if the engine can. `prefix_key`: the secret behind the keys of
        KV blocks, common to servers that compare them; b"" = draw one. `drafting`: the drafter beside the target; None
        = there is none."""
        self.engine, self.policy, self.profile, self.clock = engine, policy, profile, clock
        info = engine.info
        key = (prefix_key or secrets.token_bytes(32)) if prefix_cache and info.shares_blocks else b""
        self.drafting = drafting
        self.pool = BlockPool(info.num_blocks, info.block_size, self._freed, key, engine.rest)
        self.sessions: dict[int, Session] = {}
        self.stats = LoopStats()
        self.costs = CostModel(profile.cost, info.row_step)
        self.drafting_costs = DraftingCostModel(profile.drafting or DraftingCost())
        self.planned_at = 0.0  # when the latest step was planned
        self.left_out: frozenset[int] = frozenset()  # sessions without KV in it: first in the next one
        self._memory: object = None  # the policy's, from one plan to the next
        self._sleeper: asyncio.Future[None] | None = None
        self._thread = EngineThread()

    async def run(self) -> None:
        """Serve until cancelled. Raises EngineLost: readers lose their streams, and reopen them where they can."""
        while True:
            await self._gather()
            self.planned_at = self.clock()
            plan = self.policy.plan(self._snapshot(), self.profile, self.planned_at)
            self._memory = plan.memory
            if work := self._prepare(plan):
                with self.pool.keeping_freed():  # the drafter may still write in them
                    self._commit(work, await self._run_step(work))
                    await self._draft(work)
            else:
                await self._sleep(plan)

    def add(self, session: Session) -> None:
        session.timing.begin(self.clock())
        session.stats = self.stats
        self.sessions[session.id] = session
        self.wake()

    def attach(self, session: Session, known: int) -> Outbox:
        """See `Session.attach`."""
        outbox = session.attach(known)
        self.wake()
        return outbox

    def submit(self, session: Session, draft: Draft) -> bool:
        """See `Session.submit`."""
        gains = session.submit(draft, self.clock())
        self.wake()
        return gains

    def listen(self, session: Session) -> None:
        """No more drafts come from its device, which reads on."""
        session.listen()
        self.wake()

    def remove(self, session: Session) -> None:
        """Forget a live session; if the engine is computing it, its blocks come back when the step ends."""
        self.sessions.pop(session.id, None)
        session.closed = True
        if self.drafting is not None:
            self.drafting.forget(session.id)
        if not session.in_step:
            if session.trace is not None:
                session.trace.end(session.sequence.tokens)
            session.forget_kv()
            session.constraint = None  # a grammar takes some hundred KB
        self.wake()

    def wake(self) -> None:
        """Something changed: plan again."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def close(self) -> None:
        self._thread.close()

    async def _run_step(self, work: Sequence[StepItem]) -> list[Outcome]:
        """The outcomes of a step in the engine's thread; if the engine fails, an error for each session."""
        started, tokens = self.clock(), sum(len(item.segment.tokens) for item in work)
        try:
            outcomes = await self._thread.run(run_step, self.engine, work)
        except EngineLost:
            raise
        except Exception:
            log.exception("a step over %d sessions failed", len(work))
            outcomes = [step_failed()] * len(work)
        else:
            self._learn(work, self.clock() - started)
        self.stats.step(len(work), tokens, self.clock() - started)
        return outcomes

    async def _draft(self, work: Sequence[StepItem]) -> None:
        """The server's drafts for the next step, in the engine's thread, while the verdicts on this one leave."""
        if self.drafting is None:
            return
        asks = [ask for ask in map(asked_of, work) if ask is not None]
        if not asks:
            self.drafting.run(asks)  # forgets the sessions that are over
            return
        self._take(await self._thread.run(self.drafting.run, asks))

    def _take(self, drafted: OwnDrafts) -> None:
        """Drafts wait with their sessions, as far as these are still there."""
        self.stats.drafting_s += drafted.seconds
        drafted.teach(self.drafting_costs)
        self.profile = replace(self.profile, drafting=self.drafting_costs.cost)
        for id, made in drafted.proposals.items():
            session = self.sessions.get(id)
            if session is not None:
                session.take_own(*made)

    def _freed(self, blocks: Sequence[int]) -> None:
        """KV blocks whose content is not needed any more."""
        self.engine.forget(blocks)
        if self.drafting is not None:
            self.drafting.freed(blocks)

    def _snapshot(self) -> Snapshot:
        if self.pool.prefixes is not None:
            self._adopt()
        now = self.clock()
        return Snapshot(tuple([session.view(now) for session in self.sessions.values()]), self._memory)

    def _adopt(self) -> None:
        """Give sessions the KV that others have computed meanwhile, if they have more than a block to compute."""
        for session in self.sessions.values():
            if adopts(session, self.pool.block_size):
                assert not session.in_step, "the engine writes behind what was computed"
                session.adopt_kv()

    def _learn(self, work: Sequence[StepItem], seconds: float) -> None:
        """Learn the cost of steps from one that succeeded."""
        tokens = sum(len(item.segment.tokens) for item in work)
        contexts = sum(item.segment.start * self._reads(item.segment) for item in work) + tokens
        self.costs.observe(tokens, contexts, len(work), seconds)
        if self.costs.cost is not self.profile.cost:
            self.profile = replace(self.profile, cost=self.costs.cost)

    def _reads(self, segment: Segment) -> int:
        """How often a step reads the text's KV: at level `exact` once for each branch of a tree."""
        by_branch = segment.parents and self.engine.info.numerics == "exact"
        return len(list(runs(segment.parents))) if by_branch else 1

    def _prepare(self, plan: BatchPlan) -> list[StepItem]:
        """Turn slices into work; a session without the KV it needs waits for the next plan."""
        step = KVPreemptor(self.sessions, self.pool, self.clock())
        work = step.fit(plan.slices, self.left_out)
        self.left_out = step.left_out
        self.stats.preempted += step.preempted
        return work

    def _commit(self, work: Sequence[StepItem], outcomes: Sequence[Outcome]) -> None:
        """Apply a step to its sessions."""
        now = self.clock()
        for item, outcome in zip(work, outcomes):
            self._commit_one(item, outcome, now)

    def _commit_one(self, item: StepItem, outcome: Outcome, now: float) -> None:
        session = item.session
        try:
            if isinstance(outcome, OpenSledError):
                raise outcome
            tokens = session.commit(item, outcome, now)
        except OpenSledError as error:
            session.in_step = False
            session.sequence.table.withdraw()
            self.stats.failures[error.code] += 1
            log.info("a sequence ends by an error", extra={"code": error.code})
            self.remove(session)
            session.fail(error)
            return
        if session.trace is not None and outcome is not None:
            session.trace.add(outcome.likeliest[:tokens])
        if session.sequence.over or session.closed:
            self.remove(session)
        elif session.leaving:
            session.hand_over()

    async def _gather(self) -> None:
        """Let arriving drafts join the step; return at once if no device is drafting, or there is nothing to join."""
        if all(session.rests for session in self.sessions.values()):
            return
        for _ in range(GATHER_TURNS):
            if not any(session.awaits_draft for session in self.sessions.values()):
                return
            await asyncio.sleep(0)

    async def _sleep(self, plan: BatchPlan) -> None:
        """Until `wake` is called or the plan's time has come; nothing can have arrived since it was made."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = None
        if plan.wake_at is not None:
            timer = loop.call_later(max(0.0, plan.wake_at - self.clock()), self.wake)
        try:
            await self._sleeper
        finally:
            if timer is not None:
                timer.cancel()


class _Call(NamedTuple):
    """What is to run, and the future of the event loop that waits for it."""

    work: Callable[[], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def run(self) -> None:
        """In the engine's thread."""
        if self.answer.cancelled():
            return
        try:
            result, error = self.work(), None
        except BaseException as raised:
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for this
            self.loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: object, error: BaseException | None) -> None:
        """In the event loop."""
        if self.answer.done():  # cancelled meanwhile
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class EngineThread:
    """Starts with the first call.

    `ThreadPoolExecutor` serves many threads and many callers, and costs several times as much in each step.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises. Whoever is cancelled does not wait; what has begun goes on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls.put(_Call(lambda: work(*args, **kwargs), answer, loop))
        return await answer

    def close(self) -> None:
        """Wait for the calls that have begun or wait, then end the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # else it would keep its sessions until the next one
