"""SLED as published (arXiv 2506.09397): one fixed batch at a time, padded to its longest draft.

Devices whose draft has arrived wait for the others; the server decodes nothing for a device that drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hw_profiles.step_cost import HardwareProfile
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Slice, Snapshot, fitting


@dataclass(frozen=True)
class Static:
    """A batch starts when `batch` sessions are ready (0 = all sessions), and never has more of them.

    A session is ready if it has a draft, if no draft of it is expected, or if its device has been silent for
    `draft_wait` seconds since its last verdict (the server then decodes one token). So no batch waits longer than that.
    A prompt, or lost KV, is computed and decided in a step without padding before the next batch.
    """

    draft_wait: float
    batch: int = 0

    @classmethod
    def of(cls, options: PolicyOptions) -> Static:
        return cls(options.draft_wait, options.batch)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        awaited = [session for session in snapshot.sessions if _can_be_ready(session)]
        ready = [session for session in awaited if self._is_ready(session, now)]
        prompts = [session for session in ready if session.uncomputed > 1]
        if prompts:
            return BatchPlan(_prompt_slices(prompts, profile.max_step_tokens))
        size = min(self.batch or len(awaited), len(awaited))
        if not ready or len(ready) < size:
            return BatchPlan((), self._wake_at(awaited, now))
        first = sorted(ready, key=lambda session: session.waiting_since)[:size]
        return BatchPlan(_padded_slices(first, profile.max_step_tokens))

    def _is_ready(self, session: SessionView, now: float) -> bool:
        if _has_draft(session) or session.server_drives:
            return True
        return now >= session.waiting_since + self.draft_wait

    def _wake_at(self, awaited: Sequence[SessionView], now: float) -> float | None:
        """When the wait for the next silent device ends."""
        waits = [
            session.waiting_since + self.draft_wait
            for session in awaited
            if not session.server_drives and not _has_draft(session)
        ]
        wake_at = min((wait for wait in waits if wait > now), default=float("inf"))
        return None if wake_at == float("inf") else wake_at


def _can_be_ready(session: SessionView) -> bool:
    return not session.absent and (_has_draft(session) or not session.paused)


def _has_draft(session: SessionView) -> bool:
    return session.device.tokens is not None


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
