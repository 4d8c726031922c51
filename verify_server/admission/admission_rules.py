"""Admission: how many sessions a server can serve at their pace, and which session is next when more arrive.

Pure, like the policies: the same arguments give the same answer. Admitted sessions are never removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, inf
from typing import NamedTuple

from hw_profiles.step_cost import HardwareProfile, StepCost
from scheduler.plan import SessionView

# Chosen: they leave time for prompts, for steps that vary, and for background sessions.
HEADROOM = 0.9  # share of the target's time that paces may claim; prompts take the rest
PROMISED = 0.5  # maximum guaranteed pace, as a share of that of a session alone: one must not block all
BACKGROUND = 8  # one slot in so many is never given to background sessions


class AdmissionRequest(NamedTuple):
    """A session that asks for admission."""

    tenant: str
    positions: int = 0  # KV positions of its prompt and committed tokens, as far as they are known
    pace: float = 0.0  # tokens/s that it requests; 0 = none
    background: bool = False


class ActiveLoad(NamedTuple):
    """Sessions that share the target's time."""

    sessions: int
    positions: int  # KV positions that a step over all of them reads
    pace: float  # the fastest guaranteed pace among them, tokens/s

    @classmethod
    def around(cls, request: AdmissionRequest, views: Iterable[SessionView]) -> ActiveLoad:
        """The load of the request and of the sessions that it may slow down. Background sessions have a lower priority,
        so they count only if the request is one of them."""
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
    """How many sessions like those of `load` can keep the fastest of their paces without drafts; 1 to `places`.

    Each session gets one token per step, which is always possible; if a step is too small for all, they take turns.
    `max_pace`: maximum guaranteed pace in tokens/s; None = PROMISED times the pace of a session that is alone.
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
    """The maximum pace, in tokens/s, that is guaranteed to a session with so many KV positions; `max_pace`: see
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
    """The number of `places` that sessions of this kind may fill."""
    return places - places // BACKGROUND if request.background else places


def fair_level(wanted: Mapping[str, int], places: int) -> float:
    """The level of max-min fairness: a tenant that wants less gets all it wants, the others get the level; inf = every
    tenant gets all it wants."""
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
    """Whether a tenant gets one more of `places`; `held`, `waiting`: admitted and waiting sessions of each tenant.

    Tenants below their fair share come first. A slot that none of them waits for is free for all tenants.
    """
    free = places - sum(held.values())
    shares = fair_shares(tenant, held, waiting, places, used)
    if free <= 0 or held.get(tenant, 0) < shares[tenant]:
        return free > 0
    return free > reserved_places(tenant, held, waiting, shares)


def fair_shares(
    tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], places: int, used: Mapping[str, float]
) -> dict[str, int]:
    """The number of slots that each tenant may hold while others wait; `tenant` asks for one more.

    Slots that remain after equal shares go to the tenants that had the least lately (`used`, in slot-seconds). So every
    tenant has its turn, also if there are fewer slots than tenants.
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
    """The number of slots reserved for other tenants that wait and are below their fair share."""
    others = (other for other in waiting if other != tenant)
    return sum(max(0, min(waiting[other], shares[other] - held.get(other, 0))) for other in others)
