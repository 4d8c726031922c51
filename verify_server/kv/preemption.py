"""One step within the KV memory there is: who computes, and who loses his KV for it and recomputes it later.

Nobody is failed because memory is short, and nobody computes in circles:
- A session that is *resting* (its reader is gone, or too slow, or its device is drafting) gives way to anybody.
- Of those with work to do only later comers give way, so that the oldest always gets on.
- Whoever was left out of a step goes before all later comers in the next one, else short prompts would pass by a long
  one for ever.
- A draft tree takes of free memory what it needs beyond the longest chain, when all others of the step have theirs.
- What is computed ahead, before anybody waits for it, takes free blocks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.plan import Slice
from verify_server.kv.blocks import BlockPool, OutOfBlocks, OverBudget
from verify_server.session import Session, StepItem

# A session that has been resting for so many seconds is not in the midst of a round. Those give way in the order in
# which they were last used. Among those that are in one, the order of use would be the worst: they come round in it,
# so each would lose its KV just before it needs it. There the newest comer gives way, again and again the same one.
ROUND_SECONDS = 2.0


class KVPreemptor:
    """Turns the slices of one plan into work for the engine."""

    def __init__(self, sessions: Mapping[int, Session], pool: BlockPool, now: float) -> None:
        self._sessions, self._pool, self._now = sessions, pool, now
        self._waiting: dict[int, Slice] = {}  # not looked at yet
        self._refused: dict[int, Slice] = {}
        self.preempted = 0  # sessions that lost their KV

    @property
    def left_out(self) -> frozenset[int]:
        """Sessions that were planned, and somebody waits for them, but KV is short."""
        return frozenset(number for number, piece in self._refused.items() if not piece.ahead)

    def fit(self, slices: Sequence[Slice], first: frozenset[int]) -> list[StepItem]:
        """What can be computed of `slices`; `first`: who was left out of the step before."""
        if any(self._has_tree(piece) for piece in slices):
            slices = sorted(slices, key=lambda piece: (piece.ahead, self._has_tree(piece)))
        if first:
            slices = sorted(slices, key=lambda piece: _turn(piece.session, first))
        self._waiting = {piece.session: piece for piece in slices}
        work = self._work(last_resort=False)
        if not work and self._refused:
            # All memory is held by sessions that are older than the planned ones, but not planned.
            self._waiting, self._refused = self._refused, {}
            work = self._work(last_resort=True)
        return work

    def _has_tree(self, piece: Slice) -> bool:
        pending = self._sessions[piece.session].pending
        return pending is not None and bool(pending.rest.parents)

    def _work(self, *, last_resort: bool) -> list[StepItem]:
        work: list[StepItem] = []
        while self._waiting:
            piece = self._waiting.pop(next(iter(self._waiting)))
            planned = self._plan(piece, last_resort)
            if planned is None:
                self._refused[piece.session] = piece
            else:
                work.append(planned)
        return work

    def _plan(self, piece: Slice, last_resort: bool) -> StepItem | None:
        session = self._sessions[piece.session]
        while True:
            try:
                return session.plan(piece, self._now)
            except OutOfBlocks as short:
                victim = None if piece.ahead else self._victim(session, short, last_resort)
                if victim is None:
                    return None
                victim.sequence.forget_kv()
                self.preempted += 1
                # It lost what its slice was to go on from, so it must wait for the next plan.
                self._waiting.pop(victim.id, None)
                self._refused.pop(victim.id, None)

    def _victim(self, needy: Session, short: OutOfBlocks, last_resort: bool) -> Session | None:
        """Who gives way: sessions of tenants with more than their share first; one at his budget among his own."""
        holders = [
            s for s in self._sessions.values() if s is not needy and s.sequence.table.blocks and not s.in_step
        ]
        if isinstance(short, OverBudget):
            holders = [session for session in holders if session.tenant == needy.tenant]
        resting = [session for session in holders if self._is_resting(session)]
        if resting:
            return min(resting, key=self._worth)
        others = [s for s in holders if s.id > needy.id or (last_resort and not self._is_planned(s))]
        return min(others, key=lambda other: (not self._is_crowding(other), -other.id), default=None)

    def _is_resting(self, session: Session) -> bool:
        planned = self._waiting.get(session.id) or self._refused.get(session.id)
        return planned.ahead if planned is not None else session.rests

    def _is_planned(self, session: Session) -> bool:
        return session.id in self._waiting or session.id in self._refused

    def _worth(self, session: Session) -> tuple[bool, bool, float, int]:
        """Of two resting sessions the smaller one gives way first."""
        in_round = session.has_reader and self._now - session.timing.waiting_since <= ROUND_SECONDS
        used = 0.0 if in_round else session.timing.waiting_since
        return not self._is_crowding(session), in_round, used, -session.id

    def _is_crowding(self, session: Session) -> bool:
        return self._pool.is_crowding(session.tenant)


def _turn(session: int, first: frozenset[int]) -> tuple[int, int]:
    """Whoever came before all of `first`, then `first` by age, then the others; else in the order of the plan."""
    if session in first:
        return 1, session
    return (0, 0) if session < min(first) else (2, 0)
