"""First come, first served: continuous ragged batching with one fixed wait for drafts."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from hw_profiles.step_cost import HardwareProfile
from scheduler.goodput.step_budget import reserve
from scheduler.plan import (
    BatchPlan,
    PolicyOptions,
    SessionView,
    Slice,
    Snapshot,
    end_of_waits,
    fitting,
    may_decide,
)

AGE = attrgetter("ready_since")


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
        budget, slices = profile.max_step_tokens, []
        present = [session for session in snapshot.sessions if not session.absent]
        may = {session.id: may_decide(session, self.draft_wait, now) for session in present}
        deciding = [session for session in present if may[session.id] and session.uncomputed == 1]
        prompts = [session for session in present if may[session.id] and session.uncomputed > 1]
        kept = reserve(deciding, prompts, budget, AGE)
        # Where all fit by arrival: of two that push each other out of memory, one goes on.
        if len(deciding) > budget - kept:
            deciding.sort(key=AGE)
        # Short work first: a verification beside a long prompt costs the prompt little and the others nothing.
        # Last the KV that no reader waits for: it must not take the budget of the others.
        ahead = [session for session in present if not may[session.id]]
        for session in [*deciding, *sorted(prompts, key=AGE), *ahead]:
            room = budget - kept * (session.uncomputed == 1)
            piece = self._slice(session, may[session.id], room)
            if piece is not None:
                slices.append(piece)
                budget -= piece.tokens
                if piece.decide:
                    drafted = (session.device.tokens or 0) + (session.server.tokens or 0)
                    budget -= min(drafted, room - piece.tokens)
        return BatchPlan(tuple(slices), end_of_waits(present, self.draft_wait, now))

    def _slice(self, session: SessionView, decide: bool, budget: int) -> Slice | None:
        tokens = min(session.uncomputed - (not decide), budget)
        if tokens <= 0:
            return None
        if tokens < session.uncomputed:
            return Slice(session.id, tokens, False, ahead=not decide)
        left, device, server = budget - tokens, session.device, session.server
        room = left - min(device.tokens or 0, left)
        ask = self.server_draft if session.servers and session.servers[0].forecast else 0
        return Slice(
            session.id, tokens, True, draft=fitting(device, left), own=fitting(server, room), ask=ask
        )
