"""SLED as published (arXiv 2506.09397): one fixed batch at a time, padded to its longest draft.

Devices whose draft has arrived wait for the others; the server decodes nothing for a device that drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hw_profiles.step_cost import HardwareProfile
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


@dataclass(frozen=True)
class Static:
    """A batch starts when `batch` sessions are ready (0 = all sessions), and never has more of them.

    A session is ready if it has a draft, if no draft of it is expected, or if its device has been silent for
    `draft_wait` seconds since its last verdict (the server then decodes one token). So no batch waits longer than that.
    A prompt, or lost KV, is computed and decided in a step without padding before the next batch, unless a ready
    session has waited longer, and for `draft_wait`: then the batch starts with those that are ready.
    """

    draft_wait: float
    batch: int = 0

    @classmethod
    def of(cls, options: PolicyOptions) -> Static:
        return cls(options.draft_wait, options.batch)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        sessions, budget = snapshot.sessions, profile.max_step_tokens
        ready = [session for session in sessions if may_decide(session, self.draft_wait, now)]
        prompts = [session for session in ready if session.uncomputed > 1]
        first = [session for session in ready if session.uncomputed <= 1]
        first.sort(key=lambda session: session.waiting_since)
        awaited = sum([may_decide(session, -inf, now) for session in sessions])
        size = min(self.batch or awaited, awaited)
        late = [session for session in first if now >= session.waiting_since + self.draft_wait]
        if prompts and not (late and late[0].waiting_since < prompts[0].waiting_since):
            return BatchPlan(_prompt_slices(prompts, budget))
        if not prompts and len(first) < max(1, size):
            return BatchPlan((), end_of_waits(sessions, self.draft_wait, now))
        return BatchPlan(_padded_slices(first[:size], budget))


def _prompt_slices(prompts: Sequence[SessionView], budget: int) -> tuple[Slice, ...]:
    """Slices of the prompts, up to the maximum of one step."""
    slices = []
    for session in prompts:
        if budget <= 0:
            break
        tokens = _chunk(session.uncomputed, budget)
        decide = tokens == session.uncomputed
        budget -= tokens
        slices.append(
            Slice(session.id, tokens, decide, draft=fitting(session.device, budget) if decide else None)
        )
        budget -= min(session.device.tokens or 0, budget) * decide
    return tuple(slices)


def _chunk(uncomputed: int, budget: int) -> int:
    """The number of tokens to compute, but never all except one: the last one would wait for a batch, and if KV memory
    is short, two such sessions would preempt each other endlessly."""
    tokens = min(uncomputed, budget)
    return tokens - 1 if 1 < tokens == uncomputed - 1 else tokens


def _padded_slices(batch: Sequence[SessionView], budget: int) -> tuple[Slice, ...]:
    """Slices for as many sessions of `batch` as fit into one step (at least one), padded to the longest of them."""
    chosen: list[SessionView] = []
    longest = 0
    for session in batch:
        length = max(longest, min(_length(session), budget))
        if chosen and length * (len(chosen) + 1) > budget:
            break
        chosen.append(session)
        longest = length
    return tuple(
        Slice(
            each.id,
            1,
            True,
            padding=max(0, longest - _length(each)),
            draft=fitting(each.device, longest - 1),
        )
        for each in chosen
    )


def _length(session: SessionView) -> int:
    """Positions of a session in a batch: its newest token, and its draft."""
    return 1 + (session.device.tokens or 0)
