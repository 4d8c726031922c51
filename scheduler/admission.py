"""The door's rules: how many sessions a server can hold at their pace, and whose turn it is when more want in.

Pure, like the policies: the same arguments give the same answer, and nobody inside is ever sent away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, floor, inf
from typing import NamedTuple

from hw_profiles.profile import HardwareProfile
from hw_profiles.step_cost import StepCost
from scheduler.plan import SessionView

HEADROOM = 0.9  # of the target's time that may be promised; prompts take the rest
# Of the pace that a session has alone: where nothing else is said nobody is promised more, for one who asks for all
# would keep all others out.
PROMISED = 0.5
BACKGROUND = 8  # one place in so many is never given to background sessions


class AdmissionRequest(NamedTuple):
    """Who asks to be let in."""

    tenant: str
    positions: int = 0  # of KV that he brings: prompt and committed tokens, as far as they are known
    pace: float = 0.0  # tokens/s that he is to be promised; 0 = none
    background: bool = False


class ActiveLoad(NamedTuple):
    """Sessions that share the target's time."""

    sessions: int
    positions: int  # KV positions that a step over all of them reads
    pace: float  # the fastest that one of them is promised, tokens/s

    @classmethod
    def around(cls, newcomer: AdmissionRequest, views: Iterable[SessionView]) -> ActiveLoad:
        """A newcomer among those whose pace he may cost: background sessions give way, unless he is one himself."""
        sessions, positions, pace = 1, newcomer.positions, newcomer.pace
        for view in views:
            if not view.absent and (newcomer.background or not view.background):
                sessions += 1
                positions += view.context + view.uncomputed
                pace = max(pace, view.pace)
        return cls(sessions, positions, pace)


def most_sessions(
    crowd: ActiveLoad, profile: HardwareProfile, places: int, max_pace: float | None = None
) -> int:
    """How many sessions like those of `crowd` keep the pace of the fastest, drafts left aside; one to `places`.

    The target gives each of them one token a step, which is always possible; where a step is too small for all of
    them they take turns. `max_pace`: tokens/s that are promised at most; None = PROMISED of the pace of one alone.
    """
    if not crowd.pace:
        return places
    mean = crowd.positions / crowd.sessions
    most = PROMISED / _cycle_s(1, mean, profile) if max_pace is None else max_pace
    longest_s = HEADROOM / min(crowd.pace, most)
    low, high = min(1, places), places  # `low` come in; of more than `high` nobody asks
    while low < high:
        middle = (low + high + 1) // 2
        if _cycle_s(middle, mean, profile) <= longest_s:
            low = middle
        else:
            high = middle - 1
    return low


def _cycle_s(sessions: int, positions: float, profile: HardwareProfile) -> float:
    """Seconds until each of so many sessions, with `positions` each, has one more token."""
    cost: StepCost = profile.cost
    largest = profile.max_step_tokens
    if sessions <= largest:
        return cost.verify_s(sessions, sessions * positions, sessions)
    return sessions / largest * cost.verify_s(largest, largest * positions, largest)


def places_for(newcomer: AdmissionRequest, places: int) -> int:
    """Of `places`, those that sessions of his kind may fill."""
    return places - places // BACKGROUND if newcomer.background else places


def fair_level(wanted: Mapping[str, int], places: int) -> float:
    """Max-min fair: who wants less than this gets all he wants, and all others get so many; inf = all get all."""
    left = float(places)
    for number, count in enumerate(sorted(wanted.values())):
        equal = left / (len(wanted) - number)
        if count >= equal:
            return equal
        left -= count
    return inf


def may_enter(tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], places: int) -> bool:
    """Whether a tenant gets one more of `places`, when each tenant holds so many and so many of his wait outside.

    Those who have less than their fair share of the places come first; a place that none of them waits for is
    anybody's.
    """
    free = places - sum(held.values())
    if free <= 0 or held.get(tenant, 0) < fair_share(tenant, held, waiting, places):
        return free > 0
    return free > kept(tenant, held, waiting, places)


def fair_share(tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], places: int) -> int:
    """Places that a tenant who asks for one more may hold while others wait for theirs; one in any case."""
    wanted = _wanted(tenant, held, waiting)
    level = fair_level(wanted, places)
    return wanted[tenant] if level == inf else min(wanted[tenant], max(1, ceil(level)))


def kept(tenant: str, held: Mapping[str, int], waiting: Mapping[str, int], places: int) -> int:
    """Places that are kept for other tenants, who wait and have less than their fair share.

    Shares are rounded up for who asks and down for the others: else all might wait for each other.
    """
    level = fair_level(_wanted(tenant, held, waiting), places)
    share = inf if level == inf else max(1, floor(level))
    others = (other for other in waiting if other != tenant)
    return sum(max(0, min(waiting[other], int(min(share, places)) - held.get(other, 0))) for other in others)


def _wanted(tenant: str, held: Mapping[str, int], waiting: Mapping[str, int]) -> dict[str, int]:
    wanted = {name: held.get(name, 0) + waiting.get(name, 0) for name in {*held, *waiting}}
    wanted[tenant] = wanted.get(tenant, 0) + 1
    return wanted
