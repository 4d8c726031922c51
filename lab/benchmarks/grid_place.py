"""One place of the grid: the capacity of each mode there, by bisection in the simulator.

Modes of a fixed draft length get their best one: the law's choice, and those next to it if they hold more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from lab.testbed.baselines import BASELINES, LONGEST, OPENSLED, RIVALS
from lab.testbed.cells import REGIMES
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.planner import capacity_law as law
from lab.testbed.planner import mode_map
from lab.testbed.planner.capacity_search import EXACT, MOST, simulated_capacity
from lab.testbed.planner.planning import draft_wait
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.planner.setting import Work, of_fleet, recorded
from lab.testbed.traces import TraceSet

# The regimes of the emulated cells, and two more: little bandwidth and much KV to read; steps that were measured.
SERVERS = {
    **REGIMES,
    "hub-8k": replace(REGIMES["hub"], context=8192),
    "h100": Server(accelerator="h100", target="dense-8b", context=4096),
}
LENGTHS = (1, 2, 4, 8)  # draft lengths tried
ALONE = "opensled-device"  # the devices alone draft: no draft model takes memory beside the target
OURS = (OPENSLED, ALONE)  # who drafts how much is their server's choice
OF_DEVICES = ("sled-static", "sled-continuous", *OURS)  # modes in which the device matters
OF_SERVER = ("centralized", "server-sd")
NEAR = 0.8  # share of the users that fit from which on the search begins with all of them


@dataclass(frozen=True)
class Place:
    """One point of the grid; the device is "" where it does not matter."""

    regime: str
    link: str
    pace: float
    source: RecordedDrafts
    device: str = ""

    def fleet(self, draft_length: int) -> Fleet:
        """One of its devices; any will do where none matters."""
        device = self.device or mode_map.DEVICES[0]
        group = Group(1, device, self.link, draft_length=draft_length, pace=self.pace)
        return Fleet(SERVERS[self.regime], (group,))


@dataclass(frozen=True)
class PlaceCapacity:
    """The capacity of one baseline at one place."""

    baseline: str
    users: int
    draft_length: int
    law: int
    kv_fits: int  # users whose KV fits
    runs: int


def answers(place: Place, modes: Sequence[str] = (), near: int = 0) -> list[PlaceCapacity]:
    """Capacities of `modes`, by default of those that belong to `place`; others are known to hold `near` users."""
    found: list[PlaceCapacity] = []
    for name in modes or (OF_DEVICES if place.device else OF_SERVER):
        if name in OURS:
            held = max((each.users for each in found), default=0)
            found.append(_opensled(place, name, max(near, held)))
        else:
            found.append(_answer(place, name))
    return found


@cache
def asked_of(source: RecordedDrafts) -> tuple[TraceSet, Work]:
    traces = traces_of(source)
    return traces, recorded(traces)


def _answer(place: Place, baseline: str) -> PlaceCapacity:
    """With the law's choice of a draft length, or a neighbour of it."""
    setting = of_fleet(place.fleet(1), asked_of(place.source)[1])
    expected = law.best(setting, baseline, place.pace, LENGTHS)
    first = PlaceCapacity(baseline, 0, expected.draft_length, expected.users, expected.kv_fits, 0)
    lengths = _lengths(baseline, expected.draft_length)
    return _best(place, first, [(length, tuned(place, baseline, setting, length)) for length in lengths])


def _best(place: Place, first: PlaceCapacity, fleets: Sequence[tuple[int, Fleet]]) -> PlaceCapacity:
    """The first fleet is searched from the law's guess; the others only must say if they hold one more."""
    most, best, runs = min(MOST, first.kv_fits), first, 0
    for length, fleet in fleets:
        if best.users >= most:
            break
        guess = round(best.users * (1 + EXACT)) + 1 if runs else _first_guess(first.law, most)
        traces = asked_of(place.source)[0]
        found = simulated_capacity(fleet, traces, place.pace, guess, least=best.users, most=most)
        runs += found.runs
        if found.users > best.users:
            best = replace(best, users=found.users, draft_length=length)
    return replace(best, runs=runs)


def _opensled(place: Place, name: str, near: int) -> PlaceCapacity:
    """The server says how much is drafted. First it is asked to hold as many as the others do."""
    traces, work = asked_of(place.source)
    setting = of_fleet(place.fleet(1), work)
    expected = max(
        law.best(setting, mode, place.pace, LENGTHS).users for mode in RIVALS if mode != "sled-static"
    )
    fits = law.kv_fits(setting, name)
    most = min(MOST, fits)
    fleet = tuned(place, name, setting, LONGEST)
    found = simulated_capacity(fleet, traces, place.pace, near or _first_guess(expected, most), most=most)
    return PlaceCapacity(name, found.users, LONGEST, expected, fits, found.runs)


def _first_guess(expected: int, most: int) -> int:
    """The law's word; all that fit if that is not much more, for the law says rather too little."""
    return most if expected >= NEAR * most else expected


def _lengths(baseline: str, first: int) -> Sequence[int]:
    """The law's choice, then its neighbours."""
    if baseline == "centralized":
        return (0,)
    at = LENGTHS.index(first)
    return (first, *LENGTHS[max(0, at - 1) : at], *LENGTHS[at + 1 : at + 2])


def tuned(place: Place, baseline: str, setting: law.Setting, length: int) -> Fleet:
    """The baseline's fleet; its server waits as long for drafts as suits these devices, as the planner advises, unless
    it learns by itself how long that is."""
    fleet = place.fleet(length)
    if baseline in OURS:
        return BASELINES[baseline](fleet)
    server = replace(fleet.server, draft_wait=draft_wait(setting, length))
    return BASELINES[baseline](replace(fleet, server=server))
