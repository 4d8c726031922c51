"""First come, first served: continuous ragged batching with one fixed wait for drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hw_profiles.step_cost import HardwareProfile
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Slice, Snapshot, fitting


@dataclass(frozen=True)
class Fcfs:
    """`draft_wait`: maximum seconds that a session waits for its device before the server decodes one token;
    0 = never wait, infinity = no limit. `server_draft`: length of server drafts, in tokens."""

    draft_wait: float
    server_draft: int = 0

    @classmethod
    def of(cls, options: PolicyOptions) -> Fcfs:
        return cls(options.draft_wait, options.server_draft)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        budget = profile.max_step_tokens
        slices = []
        present = [session for session in snapshot.sessions if not session.absent]
        for session, decide in self._in_turn(present, now):
            piece = self._slice(session, decide, budget)
            if piece is not None:
                slices.append(piece)
                budget -= piece.tokens
                if piece.decide:
                    budget -= min((session.device.tokens or 0) + (session.server.tokens or 0), budget)
        return BatchPlan(tuple(slices), self._wake_at(present, now))

    def _in_turn(self, present: Sequence[SessionView], now: float) -> list[tuple[SessionView, bool]]:
        """The sessions that have something to compute, and whether they may decide."""
        judged = [(session, self._may_decide(session, now)) for session in present]
        work = [each for each in judged if each[1] or each[0].uncomputed > 1]
        # Short work first: a verification beside a long prompt costs the prompt little and the others nothing.
        # Last the KV that no reader waits for: it must not take the budget of the others.
        return sorted(work, key=lambda each: (not each[1], each[0].uncomputed > 1))

    def _slice(self, session: SessionView, decide: bool, budget: int) -> Slice | None:
        wanted = session.uncomputed if decide else session.uncomputed - 1
        tokens = min(wanted, budget)
        if tokens <= 0:
            return None
        if tokens < session.uncomputed:
            return Slice(session.id, tokens, False, ahead=not decide)
        left, device, server = budget - tokens, session.device, session.server
        room = left - min(device.tokens or 0, left)
        ask = self.server_draft if server.forecast else 0
        return Slice(
            session.id, tokens, True, draft=fitting(device, left), own=fitting(server, room), ask=ask
        )

    def _may_decide(self, session: SessionView, now: float) -> bool:
        if session.device.tokens is not None:
            return True
        if session.paused:
            return False
        return session.server_drives or now >= session.waiting_since + self.draft_wait

    def _wake_at(self, present: Sequence[SessionView], now: float) -> float | None:
        """When the next session stops waiting for its device."""
        waits = [
            session.waiting_since + self.draft_wait
            for session in present
            if not session.server_drives and not session.paused and session.device.tokens is None
        ]
        wake_at = min((wait for wait in waits if wait > now), default=float("inf"))
        return None if wake_at == float("inf") else wake_at
