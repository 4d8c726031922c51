"""Outcomes of plans against their forecasts, because the formulas leave out facts that a server cannot know.

One device may draft for several sequences with one processor, its drafter may be fast on one text and slow on the next,
and prompts come in bursts. So each review compares the tokens committed since the previous review with the planned
ones: once for sessions with device drafts, once for the others. The first ratio divided by the second is the worth of a
token that is planned with drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hw_profiles.fading import remaining_share
from scheduler.plan import SessionView

# Planned tokens of a session, and seconds, after which half of an outcome is forgotten. With 60 s, UNSEEN 10 and
# SETTLED 4, two users of one device (engine torch, SmolLM2) drafted no more after their first drafts.
HALF_TOKENS, HALF_S = 50.0, 20.0
UNSEEN = 25.0  # weight of the prior, in planned tokens of a session
SETTLED = 12  # steps after a change that do not count: the first drafts are still in transit
LEAST, MOST = 0.5, 1.25  # chosen: bounds of the worth, so that an accident does not end drafting for good


class Expected(NamedTuple):
    """The forecast for one session at a review."""

    context: int  # its length at the review
    rate: float  # tokens/s
    drafts: bool  # whether its device drafts
    since: float  # when that began, on the caller's clock


class Outcome(NamedTuple):
    """Recent tokens of sessions of one kind; the mean over these sessions."""

    tokens: float = 0.0
    planned: float = 0.0

    def after(self, tokens: float, planned: float, seconds: float) -> Outcome:
        keep = remaining_share(planned, HALF_TOKENS) * remaining_share(seconds, HALF_S)
        return Outcome(keep * self.tokens + tokens, keep * self.planned + planned)

    def ratio(self, usual: float) -> float:
        """Committed tokens / planned tokens; `usual`: the ratio assumed for a kind with few observations."""
        return (self.tokens + UNSEEN * usual) / (self.planned + UNSEEN)


class Outcomes(NamedTuple):
    """The outcome of sessions without device drafts, and of those with device drafts."""

    others: Outcome = Outcome()
    drafted: Outcome = Outcome()

    @property
    def worth(self) -> float:
        """The worth of a token planned with device drafts, in tokens planned without. A server that is slow for all
        sessions does not change it."""
        tokens, planned = (sum(values) for values in zip(self.others, self.drafted))
        if not tokens:
            return 1.0
        usual = tokens / planned
        return min(MOST, max(LEAST, self.drafted.ratio(usual) / self.others.ratio(usual)))

    def after(
        self, expected: Mapping[int, Expected], sessions: Sequence[SessionView], seconds: float, began: float
    ) -> Outcomes:
        """The outcomes `seconds` after a review with the forecasts `expected`. Sessions that read a prompt, or wait for
        a reader, or whose drafts began or ended after `began`, do not count."""
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


def recent(mean: float, value: float, seconds: float) -> float:
    """The mean of recent values, after a `value` that held for `seconds`."""
    keep = remaining_share(seconds, HALF_S)
    return keep * mean + (1 - keep) * value
