"""What came of plans, beside what they promised: the formulas leave out what a server cannot know.

One device may draft for several sequences with one processor, its drafter may be quick with one text and slow with the
next, and prompts come in bursts. So each review compares what the sessions have committed since the one before with the
rates that it gave them, apart for those with drafts of devices and for the others. The first ratio over the second is
what a token that is planned with drafts is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hw_profiles.fading import remaining_share
from scheduler.plan import SessionView

# Planned tokens of a session, and seconds, after which half of an outcome is forgotten. With 60 s, UNSEEN 10 and
# SETTLED 4, two users of one device (engine torch, SmolLM2) drafted no more after their first drafts.
HALF_TOKENS, HALF_S = 50.0, 20.0
UNSEEN = 25.0  # tokens of a session that a plan counts for by itself, beside what came of others
SETTLED = 12  # steps after a change that tell nothing: the first drafts are still on their way
LEAST, MOST = 0.5, 1.25  # chosen: of that worth, so that nothing is given up for good by an accident


class Expected(NamedTuple):
    """Of a session, as of a review."""

    context: int  # its length then
    rate: float  # tokens/s
    drafts: bool  # whether its device drafts,
    since: float  # and since when, on the caller's clock


class Outcome(NamedTuple):
    """Of sessions of one kind, lately; tokens of one of them in mean."""

    tokens: float = 0.0
    planned: float = 0.0

    def after(self, tokens: float, planned: float, seconds: float) -> Outcome:
        keep = remaining_share(planned, HALF_TOKENS) * remaining_share(seconds, HALF_S)
        return Outcome(keep * self.tokens + tokens, keep * self.planned + planned)

    def ratio(self, usual: float) -> float:
        """Of what came to what was planned; `usual`: what is assumed of a kind that was hardly seen."""
        return (self.tokens + UNSEEN * usual) / (self.planned + UNSEEN)


class Outcomes(NamedTuple):
    """Of sessions that are decoded or that the server drafts for, and of those whose device drafts."""

    others: Outcome = Outcome()
    drafted: Outcome = Outcome()

    @property
    def worth(self) -> float:
        """Of a token that is planned with drafts of a device, in tokens that are planned without. A server that is slow
        for all says nothing of drafts."""
        tokens, planned = (sum(values) for values in zip(self.others, self.drafted))
        if not tokens:
            return 1.0
        usual = tokens / planned
        return min(MOST, max(LEAST, self.drafted.ratio(usual) / self.others.ratio(usual)))

    def after(
        self, expected: Mapping[int, Expected], sessions: Sequence[SessionView], seconds: float, began: float
    ) -> Outcomes:
        """`seconds` after a review that `expected` so much. Sessions that read a prompt or wait for a reader, or whose
        drafts began or ended after `began`, tell nothing."""
        found = [
            (known.drafts, max(0, session.context - known.context), known.rate * seconds)
            for session in sessions
            if (known := expected.get(session.id)) and known.since <= began
            if session.uncomputed <= 1 and not session.paused
        ]
        kinds = []
        for drafts, outcome in enumerate(self):
            of_kind = [(tokens, planned) for drafted, tokens, planned in found if drafted == drafts]
            count = max(1, len(of_kind))
            tokens, planned = (sum(values) / count for values in zip((0.0, 0.0), *of_kind))
            kinds.append(outcome.after(tokens, planned, seconds))
        return Outcomes(*kinds)


NOTHING_SEEN = Outcomes()
