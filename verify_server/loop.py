"""The server's loop: plan, one forward for everybody, commit. One event loop, one engine thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hw_profiles.profile import HardwareProfile
from opensled.errors import EngineError, OpenSledError
from scheduler.plan import BatchPlan, SchedulingPolicy, Slice, Snapshot
from verify_server.engine.base import Scores, TargetEngine
from verify_server.kv import BlockPool, OutOfBlocks
from verify_server.session import Planned, Session

log = logging.getLogger(__name__)

# What became of one session in a step: (num_accepted, next_token), its own error, or a mere prompt chunk.
Decision = tuple[int, int] | OpenSledError | None


def run_step(engine: TargetEngine, work: Sequence[Planned]) -> list[Decision]:
    """In the engine's thread: one forward over all segments, then every session's rule on its own rows."""
    scores = engine.forward([planned.segment for planned in work])
    decisions: list[Decision] = []
    row = 0
    for planned in work:
        rows = range(row, row := row + planned.segment.rows)
        decisions.append(_decide(planned, scores, rows))
    return decisions


def _decide(planned: Planned, scores: Scores, rows: range) -> Decision:
    """One session's decision; what goes wrong with its rows stays its own."""
    if planned.question is None:
        return None
    try:
        return planned.session.rule.accept(planned.question, scores, rows)
    except OpenSledError as error:
        return error


@dataclass
class LoopStats:
    """What the loop has done since the start."""

    steps: int = 0
    sessions: int = 0  # sessions served, summed over steps
    tokens: int = 0  # tokens committed

    def as_json(self) -> dict[str, float]:
        steps = max(self.steps, 1)
        return {
            "steps": self.steps,
            "mean_batch": round(self.sessions / steps, 3),
            "tokens_per_step": round(self.tokens / steps, 3),
        }


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
        self.pool = BlockPool(engine.info.num_blocks, engine.info.block_size)
        self.sessions: dict[int, Session] = {}
        self.stats = LoopStats()
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            self._arrival.clear()
            plan = self.policy.plan(self._snapshot(), self.profile, self.clock())
            work = self._prepare(plan)
            if not work:
                await self._sleep(plan)
                continue
            try:
                decisions = await asyncio.get_running_loop().run_in_executor(
                    self._thread, run_step, self.engine, work
                )
            except Exception:
                log.exception("a step over %d sessions failed", len(work))
                decisions = [
                    EngineError("the target model failed on this step; the server's log says why")
                ] * len(work)
            self._commit(work, decisions)

    def add(self, session: Session) -> None:
        session.waiting_since = self.clock()
        session.wake = self.wake
        self.sessions[session.id] = session
        self.wake()

    def remove(self, session: Session) -> None:
        """Forget a live session; if the engine is computing it, its blocks come back when the step ends."""
        self.sessions.pop(session.id, None)
        session.closed = True
        if not session.in_step:
            session.forget_kv()
        self.wake()

    def wake(self) -> None:
        """Something changed: plan again."""
        self._arrival.set()

    def close(self) -> None:
        self._thread.shutdown()

    def _snapshot(self) -> Snapshot:
        return Snapshot(tuple(session.view() for session in self.sessions.values()))

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
                victim = self._victim(session, waiting)
                if victim is None:
                    return None
                victim.forget_kv()
                waiting.pop(victim.id, None)

    def _victim(self, needy: Session, waiting: Collection[int]) -> Session | None:
        """Who holds KV and is not in this step: first one that is idle, whatever its age, then the newest comer.

        Of those with work to do, only later ones give way, so that the oldest always gets on.
        """
        holders = [s for s in self.sessions.values() if s is not needy and s.table.blocks and not s.in_step]
        idle = [session for session in holders if session.id not in waiting]
        later = [session for session in holders if session.id > needy.id]
        return next(reversed(idle or later), None)

    def _commit(self, work: Sequence[Planned], decisions: Sequence[Decision]) -> None:
        self.stats.steps += 1
        self.stats.sessions += len(work)
        now = self.clock()
        for planned, decision in zip(work, decisions):
            self._commit_one(planned, decision, now)

    def _commit_one(self, planned: Planned, decision: Decision, now: float) -> None:
        session = planned.session
        if isinstance(decision, OpenSledError):
            session.in_step = False
            self.remove(session)
            session.fail(decision)
            return
        self.stats.tokens += session.commit(planned, decision, now)
        if session.finish_reason or session.closed:
            self.remove(session)

    async def _sleep(self, plan: BatchPlan) -> None:
        timeout = None if plan.wake_at is None else max(0.0, plan.wake_at - self.clock())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), timeout)
