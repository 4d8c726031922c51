"""Scheduling for a draft model that stands beside the target: it drafts for the whole batch, then all is verified.

The testbed plays such a drafter with processes and messages, which arrive one by one. A policy that begins with the
first of them would split the batch in two halves that take turns, which no server with a draft of its own does.
"""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.step_cost import HardwareProfile
from scheduler.baselines import Fcfs
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Snapshot


@dataclass(frozen=True)
class Colocated:
    """`fcfs` that first awaits the draft of every session, for at most `draft_wait` seconds since its last verdict."""

    draft_wait: float

    @classmethod
    def of(cls, options: PolicyOptions) -> Colocated:
        return cls(options.draft_wait)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        ends = [self._awaited_until(session) for session in snapshot.sessions if _drafts(session)]
        if any(end > now for end in ends):
            return BatchPlan((), min(end for end in ends if end > now))
        return Fcfs(self.draft_wait).plan(snapshot, profile, now)

    def _awaited_until(self, session: SessionView) -> float:
        return session.waiting_since + self.draft_wait


def _drafts(session: SessionView) -> bool:
    """Whether a draft is on its way."""
    return session.draft is None and not (session.server_drives or session.paused or session.absent)
