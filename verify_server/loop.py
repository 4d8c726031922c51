"""The server's loop: plan, one forward for everybody, commit. One event loop, one engine thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from hw_profiles.profile import HardwareProfile
from opensled.errors import EngineError, OpenSledError
from scheduler.plan import BatchPlan, SchedulingPolicy, Slice, Snapshot
from verify_server.acceptance.base import Question
from verify_server.counters import LoopStats
from verify_server.engine.base import HearsOfFreeBlocks, Scores, TargetEngine
from verify_server.kv import BlockPool, OutOfBlocks
from verify_server.session import Decision, Planned, Session

log = logging.getLogger(__name__)

# Turns of the event loop, some microseconds each, that drafts on their way in are given to join a step: for each hop
# to the engine's thread and back costs as much as two rounds of a session.
GATHER_TURNS = 8

# What became of one session in a step: a decision, its own error, or (None) a mere prompt chunk.
Outcome = Decision | OpenSledError | None


def run_step(engine: TargetEngine, work: Sequence[Planned]) -> list[Outcome]:
    """In the engine's thread: one forward over all segments, then every session's rule on its own rows."""
    scores = engine.forward([planned.segment for planned in work])
    outcomes: list[Outcome] = []
    row = 0
    for planned in work:
        rows = range(row, row := row + planned.segment.rows)
        outcomes.append(_outcome(planned, scores, rows))
    return outcomes


def _outcome(planned: Planned, scores: Scores, rows: range) -> Outcome:
    """One session's decision; what goes wrong with its rows stays its own, be it a bug of ours."""
    if planned.question is None:
        return None
    try:
        return _decide(planned.session, planned.question, scores, rows)
    except OpenSledError as error:
        return error
    except Exception:
        log.exception("a sequence's rows cannot be decided")
        return _step_failed()


def _step_failed() -> EngineError:
    return EngineError("the target model failed on this step; the server's log says why")


def _decide(session: Session, question: Question, scores: Scores, rows: range) -> Decision:
    if session.constraint is not None:
        question = question._replace(masks=session.constraint.allowed(question.ids))
    num_accepted, next_token = session.rule.accept(question, scores, rows)
    if question.top_logprobs is None:
        return Decision(num_accepted, next_token)
    decided = (*question.ids[:num_accepted], next_token)
    logprobs = scores.logprobs(rows[: len(decided)], decided, question.top_logprobs)
    return Decision(num_accepted, next_token, tuple(logprobs))


class VerifyLoop:
    """Owns the live sessions, in order of arrival, and the only thread that touches the engine."""

    def __init__(
        self,
        engine: TargetEngine,
        policy: SchedulingPolicy,
        profile: HardwareProfile,
        clock: Callable[[], float],
    ) -> None:
        self.engine, self.policy, self.profile, self.clock = engine, policy, profile, clock
        forget = engine.forget if isinstance(engine, HearsOfFreeBlocks) else None
        self.pool = BlockPool(engine.info.num_blocks, engine.info.block_size, forget)
        self.sessions: dict[int, Session] = {}
        self.stats = LoopStats()
        self._memory: object = None  # the policy's, from one plan to the next
        self._sleeper: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._gather()
            plan = self.policy.plan(self._snapshot(), self.profile, self.clock())
            self._memory = plan.memory
            work = self._prepare(plan)
            if not work:
                await self._sleep(plan)
                continue
            started = self.clock()
            try:
                outcomes = await asyncio.get_running_loop().run_in_executor(
                    self._thread, run_step, self.engine, work
                )
            except Exception:
                log.exception("a step over %d sessions failed", len(work))
                outcomes = [_step_failed()] * len(work)
            self.stats.step(work, self.clock() - started)
            self._commit(work, outcomes)

    def add(self, session: Session) -> None:
        session.waiting_since = self.clock()
        session.wake, session.on_stale, session.clock = self.wake, self.stats.drop, self.clock
        self.sessions[session.id] = session
        self.wake()

    def remove(self, session: Session) -> None:
        """Forget a live session; if the engine is computing it, its blocks come back when the step ends."""
        self.sessions.pop(session.id, None)
        session.closed = True
        if not session.in_step:
            session.forget_kv()
            session.constraint = None  # a grammar takes some hundred KB, and nothing is decided any more
        self.wake()

    def wake(self) -> None:
        """Something changed: plan again."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def close(self) -> None:
        self._thread.shutdown()

    def _snapshot(self) -> Snapshot:
        return Snapshot(tuple(session.view() for session in self.sessions.values()), self._memory)

    def _prepare(self, plan: BatchPlan) -> list[Planned]:
        """Turn slices into work; a session that lost its KV to an earlier slice waits for the next plan."""
        work: list[Planned] = []
        waiting = {piece.session: piece for piece in plan.slices}
        while waiting:
            piece = waiting.pop(next(iter(waiting)))
            planned = self._plan_slice(piece, waiting)
            if planned is not None:
                work.append(planned)
        return work

    def _plan_slice(self, piece: Slice, waiting: dict[int, Slice]) -> Planned | None:
        """Plan one slice; when KV is short, another session loses its own and recomputes it when it is its turn."""
        session = self.sessions[piece.session]
        while True:
            try:
                return session.plan(piece)
            except OutOfBlocks:
                victim = None if piece.ahead else self._victim(session, waiting)
                if victim is None:
                    return None
                victim.forget_kv()
                waiting.pop(victim.id, None)

    def _victim(self, needy: Session, waiting: Mapping[int, Slice]) -> Session | None:
        """Who holds KV and is not in this step: first one nobody waits for, whatever its age, then the newest comer.

        Of those with work to do, only later ones give way, so that the oldest always gets on.
        """
        holders = [s for s in self.sessions.values() if s is not needy and s.table.blocks and not s.in_step]
        idle = [s for s in holders if s.id not in waiting or waiting[s.id].ahead]
        later = [session for session in holders if session.id > needy.id]
        return next(reversed(idle or later), None)

    def _commit(self, work: Sequence[Planned], outcomes: Sequence[Outcome]) -> None:
        now = self.clock()
        for planned, outcome in zip(work, outcomes):
            self._commit_one(planned, outcome, now)

    def _commit_one(self, planned: Planned, outcome: Outcome, now: float) -> None:
        session = planned.session
        try:
            if isinstance(outcome, OpenSledError):
                raise outcome
            self.stats.commit(planned, session.commit(planned, outcome, now))
        except OpenSledError as error:
            session.in_step = False
            self.stats.failures[error.code] += 1
            log.info("a sequence ends by an error", extra={"code": error.code})
            self.remove(session)
            session.fail(error)
            return
        if session.finish_reason or session.closed:
            self.remove(session)

    async def _gather(self) -> None:
        """Let drafts that are on their way in join the step, unless there is nobody who could send one."""
        for _ in range(GATHER_TURNS):
            if not any(session.awaits_draft for session in self.sessions.values()):
                return
            await asyncio.sleep(0)

    async def _sleep(self, plan: BatchPlan) -> None:
        """Until something arrives, or the plan's time has come; nothing can have arrived since it was made."""
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
