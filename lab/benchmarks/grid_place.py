"""One place of the grid: the capacity of each baseline there, by bisection in the simulator, and its throughput.

Baselines of a fixed draft length get their best one: the law's choice, and those next to it if they hold more. So does
PipeSD: of its 16 pairs of thresholds the law's choice, and the two next best by the law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lab.testbed.baselines import BASELINES, LONGEST, OPENSLED, PARTS, PIPESD, RIVALS
from lab.testbed.cells import REGIMES
from lab.testbed.fleet import Fleet, Group
from lab.testbed.load.load import Load
from lab.testbed.planner import capacity_law as law
from lab.testbed.planner import mode_map
from lab.testbed.planner.capacity_search import EXACT, MOST, simulated_capacity
from lab.testbed.planner.planning import draft_wait
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.planner.setting import Work, of_fleet, recorded
from lab.testbed.planner.thresholds import pairs
from lab.testbed.simulated.compare import throughput
from lab.testbed.simulator import simulate
from lab.testbed.traces import TraceSet
from lab.testbed.tuning import Tuning

# The regimes of the emulated cells, and one more: little bandwidth and much KV to read.
SERVERS = {**REGIMES, "hub-8k": replace(REGIMES["hub"], context=8192)}
LENGTHS = (1, 2, 4, 8)  # draft lengths tried
OF_DEVICES = (
    "sled-static",
    "sled-continuous",
    OPENSLED,
    "opensled-device",
)  # baselines in which the device matters
OF_SERVER = ("centralized", "server-sd", "opensled-server")
OURS = (OPENSLED, *PARTS)  # who drafts how much is their server's choice
LEAST, TOKENS = 60, 4000  # the window in which throughput is measured: tokens of a user, and of all
WARMUP_S = 3.0  # before it, at least: devices become known, and their users fall out of step
FULL = 0.85  # share of the users that fit; the law errs by up to 15 % where speed decides
PAIRS_TRIED = 3  # pairs of thresholds that are simulated
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
    thresholds: tuple[float, float] | None = None  # R1 and R2 of PipeSD


def answers(place: Place, baselines: Sequence[str] = (), near: int = 0) -> list[PlaceCapacity]:
    """Capacities of `baselines`, by default of those that belong to `place`; others are known to hold `near` users."""
    found: list[PlaceCapacity] = []
    usual = OF_DEVICES if place.device else OF_SERVER
    for name in baselines or [name for name in usual if name not in PARTS]:
        if name in OURS:
            held = max((each.users for each in found if each.baseline in RIVALS), default=0)
            found.append(_opensled(place, name, max(near, held)))
        else:
            found.append(_pipesd(place) if name == PIPESD else _answer(place, name))
    return found


def rates(place: Place, users: int, lengths: Mapping[str, int]) -> dict[str, float]:
    """Tokens/s of each baseline in `lengths`, which says its draft length, with so many users."""
    return {
        name: _rate(replace(place, device="") if name in OF_SERVER else place, name, users, length)
        for name, length in lengths.items()
    }


@cache
def _rate(place: Place, baseline: str, users: int, length: int) -> float:
    traces, work = asked_of(place.source)
    setting = of_fleet(place.fleet(1), work)
    fleet = tuned(place, baseline, setting, Tuning(length))
    # In the window plain decoding writes TOKENS in all, but not less than LEAST for each user.
    step_s, tokens = setting.step_s(users, 0, 1), max(LEAST, TOKENS / users)
    load = Load(warmup=max(WARMUP_S, LEAST * step_s), duration=max(WARMUP_S, tokens * step_s))
    found = throughput(simulate(fleet.of_users(users), traces, load))
    assert found is not None
    return round(found, 2)


@cache
def asked_of(source: RecordedDrafts) -> tuple[TraceSet, Work]:
    traces = traces_of(source)
    return traces, recorded(traces)


def by_law(place: Place) -> int:
    """How many users the server can serve by decoding alone."""
    setting = of_fleet(place.fleet(1), asked_of(place.source)[1])
    return law.best(setting, "centralized", place.pace).users


def left_open(place: Place) -> bool:
    """Whether drafting can matter there by the law: decoding alone fills less than FULL of the memory, and some mode
    serves a user at the pace."""
    setting = of_fleet(place.fleet(1), asked_of(place.source)[1])
    if by_law(place) >= FULL * law.kv_fits(setting, "centralized"):
        return False
    return any(law.best(setting, mode, place.pace).users for mode in law.MODES)


def _answer(place: Place, baseline: str) -> PlaceCapacity:
    """With the law's choice of a draft length, or a neighbour of it."""
    setting = of_fleet(place.fleet(1), asked_of(place.source)[1])
    expected = law.best(setting, baseline, place.pace, LENGTHS)
    first = PlaceCapacity(baseline, 0, expected.draft_length, expected.users, expected.kv_fits, 0)
    tunings = map(Tuning, _lengths(baseline, expected.draft_length))
    return _best(place, first, [(tuning, tuned(place, baseline, setting, tuning)) for tuning in tunings])


def _pipesd(place: Place) -> PlaceCapacity:
    """With the thresholds that hold most by the law, or those next to them."""
    setting = of_fleet(place.fleet(1), asked_of(place.source)[1])
    tried = pairs(setting, place.source, place.pace)[:PAIRS_TRIED]
    tuning, _, expected = tried[0]
    first = PlaceCapacity(PIPESD, 0, LONGEST, expected.users, expected.kv_fits, 0, tuning[1:])
    return _best(place, first, [(each.tuning, tuned(place, PIPESD, setting, each.tuning)) for each in tried])


def _best(place: Place, first: PlaceCapacity, fleets: Sequence[tuple[Tuning, Fleet]]) -> PlaceCapacity:
    """The first fleet is searched from the law's guess; the others only must say if they hold one more."""
    most, best, runs = min(MOST, first.kv_fits), first, 0
    for tuning, fleet in fleets:
        if best.users >= most:
            break
        guess = round(best.users * (1 + EXACT)) + 1 if runs else _first_guess(first.law, most)
        traces = asked_of(place.source)[0]
        found = simulated_capacity(fleet, traces, place.pace, guess, least=best.users, most=most)
        runs += found.runs
        if found.users > best.users:
            thresholds = tuning[1:] if tuning.newest else None
            best = replace(best, users=found.users, draft_length=tuning.draft_length, thresholds=thresholds)
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
    fleet = tuned(place, name, setting, Tuning(LONGEST))
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


def tuned(place: Place, baseline: str, setting: law.Setting, tuning: Tuning) -> Fleet:
    """The baseline's fleet; its server waits as long for drafts as suits these devices, as the planner advises, unless
    it learns by itself how long that is."""
    fleet = tuning.of(place.fleet(tuning.draft_length))
    if baseline in OURS:
        return BASELINES[baseline](fleet)
    server = replace(fleet.server, draft_wait=draft_wait(setting, tuning.draft_length))
    return BASELINES[baseline](replace(fleet, server=server))
