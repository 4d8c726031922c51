"""Admission: how many sessions a server can hold at their pace, and whose turn it is when more want to come in.

Pure, like the policies: the same arguments give the same answer. Sessions inside are never sent away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, inf
from typing import NamedTuple

from hw_profiles.step_cost import HardwareProfile, StepCost
from scheduler.plan import SessionView

# Chosen: what the law leaves for prompts, for steps that vary, and for background sessions to move at all.
HEADROOM = 0.9  # share of the target's time that paces may claim; prompts take the rest
PROMISED = 0.5  # of the pace of one session alone is promised at most: one request for all of it would block all others
BACKGROUND = 8  # one place in so many is never given to background sessions


class AdmissionRequest(NamedTuple):
    """A session that asks to come in."""

    tenant: str
    positions: int = 0  # of KV that it brings: prompt and committed tokens, as far as they are known
    pace: float = 0.0  # tokens/s that it asks for; 0 = none
    background: bool = False


class ActiveLoad(NamedTuple):
    """Sessions that share the target's time."""

    sessions: int
    positions: int  # KV positions that a step over all of them reads
    pace: float  # the fastest promised pace among them, tokens/s

    @classmethod
    def around(cls, request: AdmissionRequest, views: Iterable[SessionView]) -> ActiveLoad:
        """The request and the sessions whose pace it may cost. Background sessions give way to it, unless it is one."""
        sessions, positions, pace = 1, request.positions, request.pace
        for view in views:
            if not view.absent and (request.background or not view.background):
                sessions += 1
                positions += view.context + view.uncomputed
                pace = max(pace, view.pace)
        return cls(sessions, positions, pace)


def fitting_sessions(
    load: ActiveLoad, profile: HardwareProfile, places: int, max_pace: float | None = None
) -> int:
    """How many sessions like those of `load` keep the pace of the fastest, without drafts; 1 to `places`.

    The target gives each of them one token a step, which is always possible; where a step is too small for all, they
    take turns. `max_pace`: tokens/s that are promised at most; None = PROMISED of the pace of one session alone.
    """
    if not load.pace:
        return places
    mean = load.positions / load.sessions
    longest_s = HEADROOM / min(load.pace, max_promised(mean, profile, max_pace))
    low, high = min(1, places), places
    while low < high:
        middle = (low + high + 1) // 2
        if _cycle_s(middle, mean, profile) <= longest_s:
            low = middle
        else:
            high = middle - 1
    return low


def max_promised(positions: float, profile: HardwareProfile, max_pace: float | None = None) -> float:
    """The highest pace, in tokens/s, that is promised to a session of so many KV positions; `max_pace`: see
    `fitting_sessions`."""
    return PROMISED / _cycle_s(1, positions, profile) if max_pace is None else max_pace


def _cycle_s(sessions: int, positions: float, profile: HardwareProfile) -> float:
    """Seconds until each of `sessions` sessions, with `positions` each, has one more token."""
    cost: StepCost = profile.cost
    largest = profile.max_step_tokens
    if sessions <= largest:
        return cost.verify_s(sessions, sessions * positions, sessions)
    return sessions / largest * cost.verify_s(largest, largest * positions, largest)


def places_for(request: AdmissionRequest, places: int) -> int:
    """Of `places`, those that sessions of this kind may fill."""
    return places - places // BACKGROUND if request.background else places


def fair_level(wanted: Mapping[str, int], places: int) -> float:
    """Max-min fairness: a tenant who wants less than this level gets all it wants, the others get the level; inf = all
    get all."""
    left = float(places)
    for number, count in enumerate(sorted(wanted.values())):
        equal = left / (len(wanted) - number)
        if count >= equal:
            return equal
        left -= count
    return inf


def may_enter(
    tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], places: int, used: Mapping[str, float]
) -> bool:
    """Whether a tenant gets one more of `places`; `held`, `waiting`: sessions of each tenant inside, and outside.

    Tenants with less than their fair share come first. A place that none of them waits for is free for all.
    """
    free = places - sum(held.values())
    shares = fair_shares(tenant, held, waiting, places, used)
    if free <= 0 or held.get(tenant, 0) < shares[tenant]:
        return free > 0
    return free > reserved_places(tenant, held, waiting, shares)


def fair_shares(
    tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], places: int, used: Mapping[str, float]
) -> dict[str, int]:
    """Places that each tenant may hold while others wait for theirs; `tenant` asks for one more.

    Places that equal shares leave over go to those who had the least of late: `used`, in place-seconds. So where there
    are fewer places than tenants, or two for three of them, all have their turn.
    """
    wanted = {name: held.get(name, 0) + waiting.get(name, 0) for name in {*held, *waiting}}
    wanted[tenant] = wanted.get(tenant, 0) + 1
    level = fair_level(wanted, places)
    if level == inf:
        return wanted
    shares = {name: min(count, floor(level)) for name, count in wanted.items()}
    want_more = [name for name, count in wanted.items() if count > shares[name]]
    want_more.sort(key=lambda name: (used.get(name, 0.0), held.get(name, 0), name != tenant))
    for name in want_more[: places - sum(shares.values())]:
        shares[name] += 1
    return shares


def reserved_places(
    tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], shares: Mapping[str, int]
) -> int:
    """Places that are reserved for other tenants, who wait and have less than their fair share."""
    others = (other for other in waiting if other != tenant)
    return sum(max(0, min(waiting[other], shares[other] - held.get(other, 0))) for other in others)
