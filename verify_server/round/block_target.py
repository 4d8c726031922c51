"""A target on one of our engines. It manages the KV blocks of the engine: preemption, prefix cache, rules."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opensled.core.trees import runs
from scheduler.plan import Slice
from verify_server.engine.base import Segment, TargetEngine
from verify_server.kv.block_memory import BlockMemory
from verify_server.kv.blocks import BlockPool
from verify_server.round.draft_stage import DraftStage
from verify_server.round.preemption import KVPreemptor
from verify_server.round.session import Session
from verify_server.round.step import run_step
from verify_server.round.step_item import StepItem
from verify_server.round.target import FittedStep, Target
from verify_server.round.twins import adopts
from verify_server.rules.decide import Outcome


class BlockTarget(Target):
    """See `Target`."""

    def __init__(
        self,
        engine: TargetEngine,
        drafting: DraftStage | None = None,
        prefix_cache: bool = True,
        prefix_key: bytes = b"",
    ) -> None:
        """`drafting`: the server's drafters; None = there are none. `prefix_cache`: share KV if the engine can.
        `prefix_key`: the secret for the keys of KV blocks, the same on all servers that compare them; b"" = random."""
        self.engine, self.drafting = engine, drafting
        self.facts = info = engine.info
        key = (prefix_key or secrets.token_bytes(32)) if prefix_cache and info.shares_blocks else b""
        self.pool = BlockPool(info.num_blocks, info.block_size, engine.forget, key, engine.rest)
        self.memory = BlockMemory(self.pool)
        if drafting is not None:
            drafting.lodge(self.pool)
        self._left_out: frozenset[int] = frozenset()  # of the latest step: first in the next one

    def refresh(self, sessions: Mapping[int, Session]) -> None:
        """See `Target`; for sessions with more than a block to compute."""
        if self.pool.prefixes is None:
            return
        for session in sessions.values():
            if adopts(session, self.pool.block_size):
                assert not session.in_step, "the engine writes behind what was computed"
                session.adopt_kv()

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """See `Target`; a session without the KV that it needs waits for the next plan."""
        step = KVPreemptor(sessions, self.pool, now)
        work = step.fit(slices, self._left_out)
        self._left_out = step.left_out
        if work:
            self.pool.keep_freed()  # the step writes there, and then its drafts, until `settle`
        return FittedStep(work, step.left_out, step.preempted)

    def step(self, work: Sequence[StepItem]) -> Sequence[Outcome]:
        """See `Target`."""
        return run_step(self.engine, work)

    def reads(self, segment: Segment) -> int:
        """See `Target`; at level `exact` once for each branch of a tree."""
        by_branch = segment.parents and self.engine.info.numerics == "exact"
        return len(list(runs(segment.parents))) if by_branch else 1

    def see(self, pixels: NDArray[np.uint8]) -> Any:
        """See `Target`."""
        return self.engine.see(pixels)

    def settle(self) -> None:
        """See `Target`."""
        super().settle()
        self.pool.release_freed()

    def forget(self, session: Session) -> None:
        """See `Target`."""
        super().forget(session)
        session.forget_kv()
