"""Counters of the server; the loop, the session manager and the sessions add to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opensled.metrics.answer_counts import AnswerCounts
from opensled.metrics.registry import SECONDS, DraftCounts, Histogram

# Upper bounds of histogram buckets. Chosen: about powers of two, up to the default of --max-sessions or beyond a step.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # sessions in one step
POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # computed by one step
DRAFTS = (1, 2, 3, 4, 6, 8, 12, 16, 32)  # tokens of one draft
REFUSALS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)  # seconds


@dataclass
class LoopStats:
    """Counts of the loop since the start."""

    steps: int = 0
    sessions: int = 0  # sessions served, summed over steps
    positions: int = 0  # computed by the target: prompts, drafts, padding, and what was computed again
    tokens: int = 0  # tokens committed
    unasked: int = 0  # of them, without a draft
    stale: int = 0  # drafts dropped without computation
    loose: int = 0  # tokens of drafts that stand though the target's own is another one
    preempted: int = 0  # times that a session lost its KV to another one
    drafts: DraftCounts = field(default_factory=DraftCounts)  # of devices
    own: DraftCounts = field(default_factory=DraftCounts)  # made by the server
    drafting_s: float = 0.0  # seconds in which the server drafted
    hints: Counter[int] = field(default_factory=Counter)  # verdicts that left with one, by its value
    failures: Counter[str] = field(default_factory=Counter)  # sequences that ended by an error, by code
    batches: Histogram = field(default_factory=lambda: Histogram(BATCHES))
    work: Histogram = field(default_factory=lambda: Histogram(POSITIONS))
    lengths: Histogram = field(default_factory=lambda: Histogram(DRAFTS))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def step(self, sessions: int, positions: int, seconds: float) -> None:
        """One forward pass, done or failed."""
        self.steps += 1
        self.sessions += sessions
        self.positions += positions
        self.work.add(positions)
        self.batches.add(sessions)
        self.seconds.add(seconds)

    def commit(self, tokens: int, hint: int | None, drafted: int = 0, accepted: int = 0) -> None:
        """A session committed `tokens`; its verdict has this hint and answers a draft of `drafted` tokens, or none."""
        self.tokens += tokens
        if hint is not None and tokens:
            self.hints[hint] += 1
        if drafted:
            self._count_draft(drafted, accepted)
        else:
            self.unasked += tokens

    def drop(self, drafted: int) -> None:
        """A draft came too late to be computed; an empty draft does not count."""
        if drafted:
            self.stale += 1
            self._count_draft(drafted, 0)

    def _count_draft(self, length: int, accepted: int) -> None:
        self.drafts.add(length, accepted)
        self.lengths.add(length)

    def as_json(self) -> dict[str, float]:
        steps = max(self.steps, 1)
        return {
            "steps": self.steps,
            "mean_batch": round(self.sessions / steps, 3),
            "tokens_per_step": round(self.tokens / steps, 3),
            "server_drafts": self.own.drafts,
            "server_draft_tokens": self.own.tokens,
            "server_draft_accepted": self.own.accepted,
            "drafting_seconds": round(self.drafting_s, 3),
        }


@dataclass
class SessionStats:
    """Requests for sessions since the start."""

    # "new", or "resumed" by a reader that came back; both begin at 0, so that the first one counts in rates
    opened: Counter[str] = field(default_factory=lambda: Counter(new=0, resumed=0))
    refused: Counter[str] = field(default_factory=Counter)  # by code, before any work
    # Seconds from the first message of a stream to the refusal that has left
    refusals: Histogram = field(default_factory=lambda: Histogram(REFUSALS))
    limited: Counter[str] = field(default_factory=Counter)  # times that a client met a limit, by limit
    answers: AnswerCounts = field(default_factory=AnswerCounts)  # over HTTP, and over gRPC to devices
