"""One place of the grid: the capacity of each baseline there, by bisection in the simulator.

Drafting baselines get their best draft length: the law's choice, and those next to it if they hold more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from opensled_testbed.baselines import BASELINES
from opensled_testbed.cells import REGIMES
from opensled_testbed.fleet import Fleet, Group
from opensled_testbed.planner import law, map
from opensled_testbed.planner.adapted import adapted
from opensled_testbed.planner.capacity import EXACT, MOST, simulated_capacity
from opensled_testbed.planner.plan import draft_wait
from opensled_testbed.planner.setting import RECORDED, Work, of_fleet, recorded
from opensled_testbed.traces import TraceSet, read_traces

# The regimes of the emulated cells, and one more: little bandwidth and much KV to read.
SERVERS = {**REGIMES, "hub-8k": replace(REGIMES["hub"], context=8192)}
LENGTHS = (1, 2, 4, 8)  # draft lengths tried
OF_DEVICES = ("sled-static", "sled-continuous")  # baselines in which the device matters
OF_SERVER = ("centralized", "server-sd")
NEAR = 0.8  # share of the users that fit from which on the search begins with all of them


@dataclass(frozen=True)
class Place:
    """One point of the grid; the device is "" where it does not matter."""

    regime: str
    link: str
    pace: float
    device: str = ""
    acceptance: float = 0.0  # of drafts that are made up; 0 = as recorded

    def fleet(self, draft_length: int) -> Fleet:
        """One of its devices; any will do where none matters."""
        group = Group(1, self.device or map.DEVICES[0], self.link, draft_length=draft_length)
        return Fleet(SERVERS[self.regime], (group,))


@dataclass(frozen=True)
class Answer:
    """The capacity of one baseline at one place."""

    baseline: str
    users: int
    draft_length: int
    law: int
    kv_fits: int  # users whose KV fits
    runs: int


def answers(place: Place) -> tuple[Place, list[Answer]]:
    """Capacities of the baselines that belong to `place`."""
    return place, [_answer(place, baseline) for baseline in (OF_DEVICES if place.device else OF_SERVER)]


@cache
def _asked(acceptance: float) -> tuple[TraceSet, Work]:
    traces = read_traces(RECORDED)
    if acceptance:
        traces = adapted(traces, acceptance)
    return traces, recorded(traces)


def _answer(place: Place, baseline: str) -> Answer:
    """The first draft length is searched from the law's guess; its neighbours only must say if they hold one more."""
    traces, work = _asked(place.acceptance)
    setting = of_fleet(place.fleet(1), work)
    expected = law.best(setting, baseline, place.pace, LENGTHS)
    most = min(MOST, expected.kv_fits)
    best, runs = Answer(baseline, 0, expected.draft_length, expected.users, expected.kv_fits, 0), 0
    for length in _lengths(baseline, expected.draft_length):
        if best.users >= most:
            break
        fleet = _tuned(place, baseline, setting, length)
        guess = round(best.users * (1 + EXACT)) + 1 if runs else _first_guess(expected.users, most)
        found = simulated_capacity(fleet, traces, place.pace, guess, least=best.users, most=most)
        runs += found.runs
        if found.users > best.users:
            best = replace(best, users=found.users, draft_length=length)
    return replace(best, runs=runs)


def _first_guess(expected: int, most: int) -> int:
    """The law's word; all that fit if that is not much more, for the law says rather too little."""
    return most if expected >= NEAR * most else expected


def _lengths(baseline: str, first: int) -> Sequence[int]:
    """The law's choice, then its neighbours."""
    if baseline == "centralized":
        return (0,)
    at = LENGTHS.index(first)
    return (first, *LENGTHS[max(0, at - 1) : at], *LENGTHS[at + 1 : at + 2])


def _tuned(place: Place, baseline: str, setting: law.Setting, length: int) -> Fleet:
    """The baseline's fleet; its server waits as long for drafts as suits these devices, as the planner advises."""
    fleet = place.fleet(length)
    server = replace(fleet.server, draft_wait=draft_wait(setting, length))
    return BASELINES[baseline](replace(fleet, server=server))
