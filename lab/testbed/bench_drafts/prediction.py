"""Whether drafts will pay, by the planner's law over the measured steps; and how far that was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import accumulate
from math import inf
from typing import Any

from hw_profiles import catalog
from hw_profiles.profiles import Curve, DraftSpeed, Quantity
from hw_profiles.speculation import WORTH
from hw_profiles.step_cost import interpolated
from lab.testbed.bench_drafts.rows import USERS
from lab.testbed.planner.acceptance import by_place
from lab.testbed.planner.asking import fastest
from lab.testbed.planner.bound import MODES
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

CHECKED = 4  # draft tokens for each user, of the step whose cost is told


@dataclass(frozen=True)
class MeasuredSteps:
    """A target's steps over rows as they were measured; also a draft beside it, whose steps have the same shape."""

    curve: Curve
    token_s: float = 0.0  # the draft's, alone
    longest: float = inf  # of a draft

    @classmethod
    def of(cls, levels: Sequence[dict[str, Any]], token_s: float = 0.0) -> MeasuredSteps:
        """More rows are never taken for a faster step: that is noise."""
        seconds = accumulate((level["ms"] / 1000 for level in levels), max)
        return cls(tuple((float(level["texts"]), each) for level, each in zip(levels, seconds)), token_s)

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """See `StepCost`. Beyond the last point its slope goes on."""
        (rows, seconds), first = self.curve[-1], self.curve[0]
        if tokens <= rows or rows == first[0]:
            return interpolated(self.curve, tokens)
        before, less = self.curve[-2]
        return seconds + (tokens - rows) * (seconds - less) / (rows - before)

    def draft_s(self, tokens: int, sessions: int, contexts: int) -> float:
        """See `HeadCost`."""
        return tokens * self.token_s * self.verify_s(sessions, contexts) / self.curve[0][1]

    def context_s(self, rows: float) -> float:
        """See `HeadCost`: a model writes none."""
        return 0.0


def predict(levels: Sequence[dict[str, Any]], agreed: dict[str, Any] | None, link: str) -> dict[str, Any]:
    """Tokens/s of each user by who drafts, for each number of users, and who should draft.

    `levels`: of the rows curve; `agreed`: of a draft, None = there is none.
    """
    steps = MeasuredSteps.of(levels)
    found: dict[str, Any] = {
        "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "link": link,
        "check_cost": {
            str(users): round(steps.verify_s(users * (1 + CHECKED), 0) / steps.verify_s(users, 0), 3)
            for users in USERS
        },
        "users": {},
    }
    ways = [ALONE, SERVER, DEVICES] if agreed and agreed["ms"] and agreed["by_place"] else [ALONE]
    setting = _setting(steps, levels, agreed if len(ways) > 1 else None, link)
    for users in USERS:
        rates = {way: fastest(setting, MODES[way], users) for way in ways}
        best = max(ways, key=lambda way: rates[way][0])
        pays = rates[best][0] > WORTH * rates[ALONE][0]
        found["users"][str(users)] = {
            **{way: round(rate, 2) for way, (rate, _) in rates.items()},
            "draft_tokens": {way: length for way, (_, length) in rates.items() if length},
            "best": best if pays else ALONE,
        }
    return found


def _setting(
    steps: MeasuredSteps, levels: Sequence[dict[str, Any]], agreed: dict[str, Any] | None, link: str
) -> Setting:
    token_s = agreed["ms"] / 1000 if agreed else 1.0
    worth = by_place(*agreed["by_place"]) if agreed else by_place(0.0)
    rate = Quantity(1 / token_s, 1 / token_s, 1 / token_s, "measured")
    return Setting(
        cost=steps,  # type: ignore[arg-type]
        draft_cost=MeasuredSteps.of(levels, token_s),  # type: ignore[arg-type]
        speed=DraftSpeed("measured", rate, rate),
        link=catalog.link(link),
        context=0,
        reserved=0,
        acceptance=worth,
        guarded=worth,
    )


def check(
    prediction: dict[str, Any], curve: Sequence[dict[str, Any]], measured: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Predicted over measured tokens/s, less 1, where the server tells whether it drafts; else why there is none."""
    if not measured or any(level["drafted"] is None for level in measured):
        return {"why": "the server does not tell whether it drafts"}
    if any(level["drafted"] for level in curve):
        return {
            "why": "the server drafts in the measured steps too; start it without drafts for a prediction"
        }
    way = SERVER if any(level["drafted"] for level in measured) else ALONE
    if way not in prediction["users"]["1"]:
        return {
            "why": "the server drafts; give its draft model with --draft-url or --draft-model to predict that"
        }
    errors = {
        str(level["texts"]): round(
            prediction["users"][str(level["texts"])][way] * level["texts"] / level["tokens_per_s"] - 1, 4
        )
        for level in measured
    }
    return {"way": way, "errors": errors}
