"""Fits one step into the KV memory: which sessions compute, and which are preempted: they lose their KV and recompute.

Short memory fails no session, and no session recomputes without progress:
- Any session can preempt one that is *resting* (without a reader, with a slow one, or with a device that drafts).
- Of the sessions with work, only newer ones are preempted, so that the oldest always progresses.
- A session that was left out of a step precedes all newer ones in the next step. Otherwise short prompts could overtake
  a long one for ever.
- A draft tree beyond the longest chain gets free memory only, after all other sessions of the step.
- Work that is computed ahead, before a reader waits for it, gets free blocks only.
- Where there is host memory (verify_server/kv/host_tier.py), a session that must go moves there if that is cheaper than
  to compute its KV again; whoever needs its blocks waits until they are copied. A session with a draft or a prompt is
  then not preempted for another one: it rests again soon.
- A session whose next block another one computes in this step waits for it (verify_server/kv/twins.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hw_profiles.step_cost import HardwareProfile
from scheduler.plan import Slice
from verify_server.kv.host_tier import HostTier
from verify_server.kv.pool import BlockPool, OutOfBlocks, OverBudget
from verify_server.kv.tending import has_blocks, is_away, leaving_order, turn
from verify_server.kv.twins import StepBlocks
from verify_server.session import Session
from verify_server.step_item import StepItem

# A session that has been resting for longer is not within a round. Such sessions are preempted by least recent use.
# Sessions within a round come back in the order of their use, so each would lose its KV just before it needs it: of
# those the newest is preempted, always the same one. Chosen: longer than a round of a slow device.
ROUND_SECONDS = 2.0


class KVPreemptor:
    """Turns the slices of one plan into work for the engine."""

    def __init__(
        self,
        sessions: Mapping[int, Session],
        pool: BlockPool,
        now: float,
        tier: HostTier | None = None,
        profile: HardwareProfile = HardwareProfile(),
    ) -> None:
        """`tier`: host memory, if there is any; `profile`: what it costs to compute KV again."""
        self._sessions, self._pool, self._now = sessions, pool, now
        self._tier = tier if tier is not None and tier.serves(sessions.values(), profile) else None
        self._profile = profile
        self._short: set[int] = set()  # sessions without memory, also those whose KV is on its way
        self._head: int | None = None  # the first of them, in the order of the step
        self._all_wait = False  # nothing more can leave now
        self._claimed: Counter[str] = (
            Counter()
        )  # blocks that copies under way free, and sessions wait for, by tenant
        self._waiting: dict[int, Slice] = {}  # slices that are not tried yet
        self._refused: dict[int, Slice] = {}  # slices without memory
        self._spared: dict[int, Slice] = {}  # slices whose next block is computed for another session
        self._blocks = StepBlocks(pool)
        self.preempted = 0  # sessions that lost their KV

    @property
    def left_out(self) -> frozenset[int]:
        """Sessions with a slice that a reader waits for, but without KV memory."""
        return frozenset(number for number, piece in self._refused.items() if not piece.ahead)

    @property
    def short(self) -> frozenset[int]:
        """Of those that are left out, the sessions that lack free blocks."""
        return self.left_out & self._short

    def fit(self, slices: Sequence[Slice], first: frozenset[int]) -> list[StepItem]:
        """The work of those `slices` that fit; `first`: the sessions that were left out of the last step."""
        if any(map(self._has_tree, slices)):
            slices = sorted(slices, key=lambda piece: (piece.ahead, self._has_tree(piece)))
        if first:
            slices = self._in_turn(slices, first)
        self._waiting = {piece.session: piece for piece in slices}
        try:
            return self._fitting()
        finally:
            self._pool.spoken_for = 0

    def _fitting(self) -> list[StepItem]:
        work = self._work(last_resort=False)
        if not work and self._refused and not (self._tier is not None and self._tier.travelling):
            # Sessions that are older than the planned ones, but not planned, hold all memory.
            self._waiting, self._refused = self._refused, {}
            work = self._work(last_resort=True)
        return work

    def _in_turn(self, slices: Sequence[Slice], first: frozenset[int]) -> list[Slice]:
        """With host memory, drafts and prompts that were left out come first, in the order in which they came: where
        copies are what is short, newer sessions would else never have theirs."""
        came: dict[int, float] = {}
        if self._tier is not None:
            turns = {id: turn(self._sessions[id]) for id in first if id in self._sessions}
            came = {id: since for id, (by_age, since, _) in turns.items() if not by_age}
        others = first.difference(came)

        def order(piece: Slice) -> tuple[float, float, int]:
            since = came.get(piece.session)
            return (*_precedence(piece.session, others), 0) if since is None else (-1, since, piece.session)

        return sorted(slices, key=order)

    def _has_tree(self, piece: Slice) -> bool:
        pending = self._sessions[piece.session].pending
        return pending is not None and bool(pending.rest.parents)

    def _work(self, *, last_resort: bool) -> list[StepItem]:
        work: list[StepItem] = []
        while self._waiting:
            piece = self._waiting.pop(next(iter(self._waiting)))
            session = self._sessions[piece.session]
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
                here = self._is_here(session, piece) and _continues(session, piece)
                return session.plan(piece, self._now) if here else None
            except OutOfBlocks as short:
                self._short.add(session.id)
                if self._head is None and not piece.ahead:
                    self._head = session.id
                if self._all_wait or self._comes_free(session, short):
                    return None
                victim = None if piece.ahead else self._victim(session, short, last_resort)
                if victim is None:
                    return None
                if self._moves(victim):
                    if self._tier is not None and self._tier.is_busy:
                        self._all_wait = True
                        self._wait_for_all()
                        return None
                    self._park(victim)
                else:
                    self._drop(victim)
                # Its slice continues KV that it has lost: it waits for the next plan.
                for slices in (self._waiting, self._refused, self._spared):
                    slices.pop(victim.id, None)

    def _is_here(self, session: Session, piece: Slice) -> bool:
        """Whether its KV is in the engine's blocks; if not, it begins to come back. Raises OutOfBlocks."""
        if session.sequence.table.swap is None:
            return True
        if self._all_wait:
            self._short.add(session.id)
        elif is_away(session) and not piece.ahead:
            assert self._tier is not None
            self._tier.fetch(session)
        return False

    def _comes_free(self, session: Session, short: OutOfBlocks) -> bool:
        """Whether copies under way free what it lacks."""
        if self._tier is None:
            return False
        own = session.tenant if isinstance(short, OverBudget) else None
        claimed = self._claimed.total() if own is None else self._claimed[own]
        if self._tier.becoming_free(own) - claimed < short.missing:
            return False
        self._claimed[session.tenant] += short.missing
        if own is None:
            self._wait_for_all()
        return True

    def _moves(self, victim: Session) -> bool:
        """Whether it should move to host memory, as that is cheaper than to compute its KV again."""
        return self._tier is not None and self._tier.pays(victim, self._profile)

    def _park(self, victim: Session) -> None:
        """Let it leave; if host memory has no room, it loses its KV."""
        assert self._tier is not None
        if not self._tier.park(victim, must=not self._is_resting(victim)):
            self._drop(victim)

    def _drop(self, victim: Session) -> None:
        victim.forget_kv()
        self.preempted += 1

    def _wait_for_all(self) -> None:
        """Nobody who comes later takes the blocks that are free now."""
        self._pool.spoken_for = self._pool.num_free

    def _victim(self, needy: Session, short: OutOfBlocks, last_resort: bool) -> Session | None:
        """The session to preempt, preferably of a tenant above its share; of the own tenant if it is at its budget."""
        holders = [s for s in self._sessions.values() if s is not needy and has_blocks(s) and not s.in_step]
        if isinstance(short, OverBudget):
            holders = [session for session in holders if session.tenant == needy.tenant]
        resting = [session for session in holders if self._is_resting(session)]
        if resting:
            return min(resting, key=self._preemption_order)
        others = [session for session in holders if self._may_take(needy, session, last_resort)]
        return min(others, key=lambda other: (not self._is_over_share(other), -other.id), default=None)

    def _may_take(self, needy: Session, other: Session, last_resort: bool) -> bool:
        """Whether one with work must go for another one with work.

        With host memory, who has a draft or a prompt goes only for the first one that lacks memory, in the order in
        which their work came: it rests again soon, and taking it by age would undo that order for ever.
        """
        unplanned = last_resort and not self._is_planned(other)
        if self._tier is None:
            return other.id > needy.id or unplanned
        by_turn = turn(other) > turn(needy)
        if turn(other)[0]:
            return other.id > needy.id or unplanned or (last_resort and by_turn)
        return unplanned or (by_turn and (last_resort or self._head == needy.id))

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
        if self._tier is not None:
            greedy, expected, newest = leaving_order(session, self._pool, self._now)
            return greedy, False, expected, newest
        in_round = session.has_reader and self._now - session.timing.waiting_since <= ROUND_SECONDS
        used = 0.0 if in_round else session.timing.waiting_since
        return not self._is_over_share(session), in_round, used, -session.id

    def _is_over_share(self, session: Session) -> bool:
        return self._pool.is_over_share(session.tenant)


def _continues(session: Session, piece: Slice) -> bool:
    """Whether a slice still goes on from what is computed: a session in host memory may have lost all of that, for
    another one in the same step."""
    stop = session.sequence.computed + piece.tokens
    return piece.decide == (stop == len(session.sequence)) and stop <= len(session.sequence)


def _precedence(session: int, first: frozenset[int]) -> tuple[int, int]:
    """Sessions older than all of `first`, then `first` by age, then the others; otherwise in the order of the plan."""
    if session in first:
        return 1, session
    return (0, 0) if not first or session < min(first) else (2, 0)
