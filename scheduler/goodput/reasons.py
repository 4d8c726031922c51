"""Why a device rests under policy `goodput`, for people: the numbers of one more draft against a step without one."""

from __future__ import annotations

from typing import NamedTuple

from hw_profiles.speculation import accepted_tokens
from hw_profiles.step_cost import StepCost
from opensled.core.messages import HintReason
from scheduler.estimates import GUESS, Forecast
from scheduler.goodput.rounds import LENGTHS
from scheduler.plan import SessionView


class Round(NamedTuple):
    """A round with a draft of `length` tokens; times in seconds."""

    length: int
    tokens: float  # that it commits
    step_s: float  # of its step
    away_s: float  # of its draft

    @property
    def rate(self) -> float:
        return self.tokens / (self.away_s + self.step_s)


def why_it_rests(session: SessionView, others: float, cost: StepCost, worth: float) -> HintReason:
    """The best draft of the session's device against none, in steps with so many `others`; `worth`: see outcomes.py."""
    forecast = session.device.forecast or GUESS
    if not forecast.drafts:  # its times are guesses
        return HintReason("untried", LENGTHS[0])
    sessions = 1 + others
    contexts = session.context * sessions

    def step_s(tokens: int) -> float:
        return cost.verify_s(sessions + tokens, contexts, sessions)

    lengths = [length for length in LENGTHS if length <= session.device.longest] or LENGTHS[:1]
    rounds = [
        Round(k, worth * (1 + float(accepted_tokens(*forecast[:2], k))), step_s(k), forecast.away_s(k))
        for k in lengths
    ]
    best, own_s = max(rounds, key=lambda each: each.rate), step_s(0)
    accepted = best.tokens / worth - 1
    return HintReason(
        "others" if others and best.rate * own_s > 1 else _cause(best, own_s, accepted, forecast),
        best.length,
        best.step_s / own_s,
        best.rate * own_s,
        1 / forecast.draft_s if forecast.draft_s else 0.0,
        1 / own_s,
        forecast.delay_s,
        accepted,
    )


def _cause(best: Round, own_s: float, accepted: float, forecast: Forecast) -> str:
    """What weighs most: that few tokens stand, or the longest of three times."""
    if 4 * accepted < best.length:  # chosen: where so few stand, nothing else is to blame
        return "acceptance"
    times = {
        "step": best.step_s - own_s,
        "device": best.length * forecast.draft_s,
        "link": forecast.delay_s,
    }
    return max(times, key=lambda name: times[name])
