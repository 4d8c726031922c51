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
from lab.testbed.planner.acceptance import by_place
from lab.testbed.planner.asking import fastest
from lab.testbed.planner.bound import MODES
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

USERS = (1, 4, 8)
ENDLESS_S = 1e6  # of a step over more rows than were measured: nothing is said of them
CHECKED = 3  # draft tokens for each user, of the step whose cost is told

Levels = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class MeasuredSteps:
    """A target's steps over rows as they were measured; also a draft beside it, whose steps have the same shape."""

    curve: Curve
    token_s: float  # of the draft, for one text
    longest: float = inf  # of a draft

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """See `StepCost`."""
        return interpolated(self.curve, tokens) if tokens <= self.curve[-1][0] else ENDLESS_S

    def draft_s(self, tokens: int, sessions: int, contexts: int) -> float:
        """See `HeadCost`."""
        return tokens * self.token_s * self.verify_s(sessions, contexts) / self.curve[0][1]

    def context_s(self, rows: float) -> float:
        """See `HeadCost`: a model writes none."""
        return 0.0


def predict(levels: Levels, agreed: dict[str, Any] | None, link: str) -> dict[str, Any]:
    """Tokens/s of each user by who drafts, for each number of users, and who should draft.

    `levels`: of the rows curve; `agreed`: of a draft, None = there is none.
    """
    known: dict[str, Any] = agreed if agreed and agreed["ms"] else {"ms": 1000, "by_place": [0.0]}
    ways = [ALONE, SERVER, DEVICES] if known is agreed else [ALONE]
    seconds = accumulate((level["ms"] / 1000 for level in levels), max)  # a faster step of more rows is noise
    texts, token_s = (level["texts"] for level in levels), known["ms"] / 1000
    steps: Any = MeasuredSteps(tuple(zip(texts, seconds)), token_s)
    pace, worth = Quantity(1 / token_s, 1 / token_s, 1 / token_s, "measured"), by_place(*known["by_place"])
    setting = Setting(steps, steps, DraftSpeed("", pace, pace), catalog.link(link), 0, 0, worth, worth)
    costs, found = dict[str, float](), dict[str, Any]()
    for users in (users for users in USERS if users <= levels[-1]["texts"]):
        rates = {way: fastest(setting, MODES[way], users) for way in ways}
        found[str(users)] = {
            **{way: round(rate, 3) for way, (rate, _) in rates.items()},
            "draft_tokens": {way: length for way, (_, length) in rates.items() if length},
            "pays": [way for way in ways[1:] if rates[way][0] > WORTH * rates[ALONE][0]],
        }
        if users * (1 + CHECKED) <= levels[-1]["texts"]:
            costs[str(users)] = round(steps.verify_s(users * (1 + CHECKED), 0) / steps.verify_s(users, 0), 3)
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return {"at": at, "link": link, "check_cost": costs, "users": found}


def check(predicted: dict[str, Any], curve: Levels, measured: Levels) -> dict[str, Any]:
    """Predicted over measured tokens/s, less 1, where the server tells whether it drafts; else why there is none."""
    way = SERVER if any(level["drafted"] for level in measured) else ALONE
    if not measured or any(level["drafted"] is None for level in measured):
        return {"why": "the server does not tell whether it drafts"}
    if any(level["drafted"] for level in curve):
        return {"why": "the server drafted while its steps were measured; start it without drafts to predict"}
    if way not in predicted["1"]:
        return {"why": "the server drafts; name its draft model (--draft-url, --draft-model) to predict that"}
    told = [(str(level["texts"]), level["tokens_per_s"] / level["texts"]) for level in measured]
    errors = {users: round(predicted[users][way] / pace - 1, 4) for users, pace in told if users in predicted}
    return {"way": way, "errors": errors}
