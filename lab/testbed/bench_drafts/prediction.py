"""Whether drafts will pay, by the planner's law over the measured steps; and how far that was right."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from hw_profiles import catalog
from hw_profiles.profiles import DraftSpeed, Quantity
from hw_profiles.speculation import WORTH
from hw_profiles.step_cost import interpolated
from lab.testbed.bench_drafts.target import Found
from lab.testbed.planner.acceptance import by_place
from lab.testbed.planner.asking import fastest
from lab.testbed.planner.bound import MODES
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

USERS = (1, 4, 8)
ENDLESS_S = 1e6  # of a step over more rows than were measured: nothing is said of them
FEW = 8  # drafts of a place that tell nothing: it is like the one before
PAYS = {(): "none", (SERVER,): "beside", (DEVICES,): "devices", (SERVER, DEVICES): "both"}
Levels = Sequence[Found]


def steps_of(levels: Levels, token_s: float) -> tuple[Any, Any]:
    """The costs of a target by its measured steps, and of a draft beside it, whose steps grow alike."""
    # That fewer rows take longer is noise
    seconds = [*accumulate((level["ms"] / 1000 for level in reversed(levels)), min)][::-1]
    curve = tuple(zip((level["texts"] for level in levels), seconds))

    def verify_s(tokens: float, contexts: float, sessions: float = 0) -> float:
        return interpolated(curve, tokens) if tokens <= curve[-1][0] else ENDLESS_S

    def pass_s(sessions: float, contexts: float) -> float:
        return token_s * verify_s(sessions, contexts) / curve[0][1]

    return SimpleNamespace(verify_s=verify_s), SimpleNamespace(verify_s=pass_s)


def predict(levels: Levels, agreed: Found | None, link: str) -> Found:
    """Tokens/s of each user by who drafts, and who should draft. `agreed`: with a draft, if there is one."""
    heard: Found = agreed if agreed and agreed["ms"] else {"ms": 1000, "kinds": {"all": []}}
    shares = [right / drafted for right, drafted in heard["kinds"]["all"] if drafted >= FEW]
    (steps, draft), worth = steps_of(levels, heard["ms"] / 1000), by_place(*shares or [0.0])
    rate = 1000 / heard["ms"]
    pace = Quantity(rate, rate, rate, "measured")
    setting = Setting(steps, draft, DraftSpeed("", pace, pace), catalog.link(link), 0, 0, worth, worth)
    most, found = levels[-1]["texts"], Found()
    for users in (users for users in USERS if users <= most):
        # The shortest draft is one more row for each of them
        ways = [SERVER, DEVICES] if shares and 2 * users <= most else []
        rates = {way: fastest(setting, MODES[way], users) for way in (ALONE, *ways)}
        pays = PAYS[tuple(way for way in ways if rates[way][0] > WORTH * rates[ALONE][0])]
        paces = {way: float(f"{rate:.4g}") for way, (rate, _) in rates.items()}
        lengths = {way: length for way, (_, length) in rates.items() if length}
        found[f"{users}"] = {**paces, "draft_tokens": lengths, "pays": pays if ways else "unknown"}
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return {"at": at, "link": link, "users": found}


def check(predicted: Found, curve: Levels, measured: Levels) -> Found:
    """Predicted over measured tokens/s, less 1, where the server tells whether it drafts; else why there is none."""
    way = SERVER if any(level["drafted"] for level in measured) else ALONE
    if not measured or any(level["drafted"] is None for level in measured):
        return {"why": "the server does not tell whether it drafts"}
    if any(level["drafted"] for level in curve):
        return {"why": "the server drafted while its steps were measured; start it without drafts to predict"}
    if way not in predicted["1"]:
        return {"why": "the server drafts; name its draft model (--draft-url, --draft-model) to predict that"}
    paces = {f"{level['texts']}": level["tokens_per_s"] / level["texts"] for level in measured}
    known = [users for users in paces if way in predicted.get(users, ())]
    return {
        "way": way,
        "errors": {users: round(predicted[users][way] / paces[users] - 1, 4) for users in known},
    }
