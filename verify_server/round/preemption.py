"""Fits one step into the KV memory: it chooses the sessions that compute, and those that are preempted (that lose their
KV and compute it again).

Short memory fails no session, and no session recomputes without progress:
- Any session can preempt one that is *resting* (without a reader, with a slow one, or with a device that drafts).
- Of the sessions with work, only newer ones are preempted, so that the oldest always progresses.
- A session that was left out of a step precedes all newer ones in the next step. Otherwise short prompts could overtake
  a long one for ever.
- A draft tree beyond the longest chain gets free memory only, after all other sessions of the step.
- Work that is computed ahead, before a reader waits for it, gets free blocks only.
- A session whose next block another one computes in this step waits for it (verify_server/round/twins.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.plan import Slice
from verify_server.kv.blocks import BlockPool, OutOfBlocks, OverBudget
from verify_server.round.session import Session
from verify_server.round.step_item import StepItem
from verify_server.round.twins import StepBlocks

# A session that has rested for longer is not within a round. Such sessions are preempted by least recent use. Sessions
# within a round come back in the order of their use, so by least recent use each would lose its KV just before it needs
# it; of those the newest is preempted, always the same one. Chosen: longer than a round of a slow device.
ROUND_SECONDS = 2.0


class KVPreemptor:
    """Turns the slices of one plan into work for the engine."""

    def __init__(self, sessions: Mapping[int, Session], pool: BlockPool, now: float) -> None:
        self._sessions, self._pool, self._now = sessions, pool, now
        self._waiting: dict[int, Slice] = {}  # slices that are not tried yet
        self._refused: dict[int, Slice] = {}  # slices without memory
        self._spared: dict[int, Slice] = {}  # slices whose next block is computed for another session
        self._blocks = StepBlocks(pool)
        self.preempted = 0  # sessions that lost their KV

    @property
    def left_out(self) -> frozenset[int]:
        """Sessions with a slice that a reader waits for, but without KV memory."""
        return frozenset(number for number, piece in self._refused.items() if not piece.ahead)

    def fit(self, slices: Sequence[Slice], first: frozenset[int]) -> list[StepItem]:
        """The work of those `slices` that fit; `first`: the sessions that were left out of the last step."""
        if any(map(self._has_tree, slices)):
            slices = sorted(slices, key=lambda piece: (piece.ahead, self._has_tree(piece)))
        if first:
            slices = sorted(slices, key=lambda piece: _precedence(piece.session, first))
        self._waiting = {piece.session: piece for piece in slices}
        work = self._work(last_resort=False)
        if not work and self._refused:
            # Sessions that are older than the planned ones, but not planned, hold all memory.
            self._waiting, self._refused = self._refused, {}
            work = self._work(last_resort=True)
        return work

    def _has_tree(self, piece: Slice) -> bool:
        offer = self._sessions[piece.session].sources.device.offer
        return offer is not None and bool(offer.block.parents)

    def _work(self, *, last_resort: bool) -> list[StepItem]:
        work: list[StepItem] = []
        while self._waiting:
            piece = self._waiting.pop(next(iter(self._waiting)))
            session = self._sessions[piece.session]
            piece = session.limit_slice(piece)
            if self._blocks.spare(session):
                self._spared[piece.session] = piece
            elif (item := self._plan(session, piece, last_resort)) is None:
                self._refused[piece.session] = piece
            else:
                self._blocks.add(session, piece.tokens)
                work.append(item)
        return work

    def _plan(self, session: Session, piece: Slice, last_resort: bool) -> StepItem | None:
        while True:
            try:
                return session.plan(piece, self._now)
            except OutOfBlocks as short:
                victim = None if piece.ahead else self._victim(session, short, last_resort)
                if victim is None:
                    return None
                victim.forget_kv()
                self.preempted += 1
                # Its slice continues KV that it has lost: it waits for the next plan.
                for slices in (self._waiting, self._refused, self._spared):
                    slices.pop(victim.id, None)

    def _victim(self, needy: Session, short: OutOfBlocks, last_resort: bool) -> Session | None:
        """The session to preempt, preferably of a tenant above its share; of the own tenant if it is at its budget."""
        holders = [
            s
            for s in self._sessions.values()
            if s is not needy and s.sequence.memory.blocks and not s.in_step
        ]
        if isinstance(short, OverBudget):
            holders = [session for session in holders if session.tenant == needy.tenant]
        resting = [session for session in holders if self._is_resting(session)]
        if resting:
            return min(resting, key=self._preemption_order)
        others = [s for s in holders if s.id > needy.id or (last_resort and not self._is_planned(s))]
        return min(others, key=lambda other: (not self._is_over_share(other), -other.id), default=None)

    def _is_resting(self, session: Session) -> bool:
        piece = self._slice(session)
        return piece.ahead if piece is not None else session.rests

    def _is_planned(self, session: Session) -> bool:
        return self._slice(session) is not None

    def _slice(self, session: Session) -> Slice | None:
        """The slice of a session that is planned, but not yet in the work."""
        waiting = self._waiting.get(session.id) or self._refused.get(session.id)
        return waiting or self._spared.get(session.id)

    def _preemption_order(self, session: Session) -> tuple[bool, bool, float, int]:
        """Of the resting sessions, the one with the smallest value is preempted first."""
        in_round = session.has_reader and self._now - session.timing.waiting_since <= ROUND_SECONDS
        used = 0.0 if in_round else session.timing.waiting_since
        return not self._is_over_share(session), in_round, used, -session.id

    def _is_over_share(self, session: Session) -> bool:
        return self._pool.is_over_share(session.tenant)


def _precedence(session: int, first: frozenset[int]) -> tuple[int, int]:
    """Sessions older than all of `first`, then `first` by age, then the others; otherwise in the order of the plan."""
    if session in first:
        return 1, session
    return (0, 0) if session < min(first) else (2, 0)
