"""The simulated grid: capacity of every baseline over regimes, links, devices and paces, beside the law's word for it.

    python -m opensled_testbed.bench.grid [--quick] [--out FOLDER]

Capacity is the largest number of users of whom 90 % read at their pace, by bisection in the simulator; all baselines
meet the same users with the same requests. Drafting baselines get their best draft length: the law's choice, and those
next to it if they hold more. Plain decoding and a draft beside the server use nothing of the device, so they are
simulated once for all devices. Writes grid.json, and map.json by the law alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from opensled.cli import INTERRUPTED
from opensled.errors import OpenSledError
from opensled_testbed.baselines import BASELINES
from opensled_testbed.bench.figure import provenance
from opensled_testbed.cells import REGIMES
from opensled_testbed.fleet import Fleet, Group
from opensled_testbed.planner import law, map
from opensled_testbed.planner.capacity import EXACT, MOST, WARMUP_TOKENS, WINDOW_TOKENS, simulated_capacity
from opensled_testbed.planner.findings import findings
from opensled_testbed.planner.plan import draft_wait
from opensled_testbed.planner.setting import RECORDED, Work, default_work, of_fleet, recorded
from opensled_testbed.traces import TraceSet, read_traces

FOLDER = Path("docs/benchmarks")
LENGTHS = (1, 2, 4, 8)  # draft lengths tried
OF_DEVICES = ("sled-static", "sled-continuous")  # baselines in which the device matters
OF_SERVER = ("centralized", "server-sd")
WORKERS = 2
NEAR = 0.8  # share of the users that fit from which on the search begins with all of them


class Axes(NamedTuple):
    """What the grid spans."""

    regimes: tuple[str, ...] = tuple(REGIMES)
    links: tuple[str, ...] = map.LINKS
    devices: tuple[str, ...] = map.DEVICES
    paces: tuple[float, ...] = map.PACES

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "baselines": [*OF_SERVER, *OF_DEVICES]}


QUICK = Axes(links=("wifi-good", "lte"), devices=("pi-5", "laptop-cpu"), paces=(10,))


@dataclass(frozen=True)
class Place:
    """One point of the grid; the device is "" where it does not matter."""

    regime: str
    link: str
    pace: float
    device: str = ""

    def fleet(self, draft_length: int) -> Fleet:
        """One of its devices; any will do where none matters."""
        group = Group(1, self.device or map.DEVICES[0], self.link, draft_length=draft_length)
        return Fleet(REGIMES[self.regime], (group,))


@dataclass(frozen=True)
class Answer:
    """The capacity of one baseline at one place."""

    baseline: str
    users: int
    draft_length: int
    law: int
    runs: int


def places(axes: Axes) -> Iterator[Place]:
    """All units of work, the long ones first so that no worker idles at the end."""
    for regime in axes.regimes:
        for pace in axes.paces:
            for link in axes.links:
                yield Place(regime, link, pace)
                yield from (Place(regime, link, pace, device) for device in axes.devices)


def answers(place: Place) -> tuple[Place, list[Answer]]:
    """Capacities of the baselines that belong to `place`."""
    return place, [_answer(place, baseline) for baseline in (OF_DEVICES if place.device else OF_SERVER)]


@cache
def _recorded() -> tuple[TraceSet, Work]:
    traces = read_traces(RECORDED)
    return traces, recorded(traces)


def _answer(place: Place, baseline: str) -> Answer:
    """The first draft length is searched from the law's guess; its neighbours only must say if they hold one more."""
    setting = of_fleet(place.fleet(1), _recorded()[1])
    expected = law.best(setting, baseline, place.pace, LENGTHS)
    most = min(MOST, expected.kv_fits)
    best, runs = Answer(baseline, 0, expected.draft_length, expected.users, 0), 0
    for length in _lengths(baseline, expected.draft_length):
        if best.users >= most:
            break
        fleet = _tuned(place, baseline, setting, length)
        guess = round(best.users * (1 + EXACT)) + 1 if runs else _first_guess(expected.users, most)
        found = simulated_capacity(fleet, _recorded()[0], place.pace, guess, least=best.users, most=most)
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


def measure(axes: Axes) -> dict[str, Any]:
    """The whole grid, on WORKERS processes."""
    work, found = list(places(axes)), dict[Place, list[Answer]]()
    started = time.monotonic()
    for place, some in _answered(work):
        found[place] = some
        _progress(len(found), len(work), time.monotonic() - started)
    points = [_point(place, found) for place in work if place.device]
    return {
        "figure": "grid",
        "title": "Users one accelerator holds at a pace",
        "label": "simulated",
        "facts": _facts(time.monotonic() - started, found),
        "axes": axes.as_json(),
        "law_error": _law_error(points),
        "points": points,
    }


def _answered(work: Sequence[Place]) -> Iterator[tuple[Place, list[Answer]]]:
    """On WORKERS processes, as they come; an interrupt ends these as well."""
    pool = ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"))
    try:
        for done in as_completed([pool.submit(answers, place) for place in work]):
            yield done.result()
    except BaseException:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _progress(done: int, all: int, seconds: float) -> None:
    if done % 20 and done < all:
        return
    left = seconds / done * (all - done)
    print(f"{done} of {all} places, {seconds:.0f} s, about {left:.0f} s left", file=sys.stderr, flush=True)


def _point(place: Place, found: dict[Place, list[Answer]]) -> dict[str, Any]:
    some = [*found[replace(place, device="")], *found[place]]
    return {
        "regime": place.regime,
        "link": place.link,
        "device": place.device,
        "pace": place.pace,
        "capacity": {each.baseline: each.users for each in some},
        "draft_length": {each.baseline: each.draft_length for each in some},
        "law": {each.baseline: each.law for each in some},
        "kv_fits": REGIMES[place.regime].cost.sessions_that_fit(REGIMES[place.regime].context),
    }


def _facts(seconds: float, found: dict[Place, list[Answer]]) -> dict[str, Any]:
    return {
        "capacity": "largest number of users of whom 90 % read at the pace, found by bisection, to within 2 %",
        "most_users": MOST,
        "warmup": f"{WARMUP_TOKENS} tokens at the pace",
        "window": f"{WINDOW_TOKENS} tokens at the pace",
        "draft_lengths": LENGTHS,
        "draft_wait": "1.5 times the mean time of a draft and its round trip, at least the server's default",
        "seconds": round(seconds),
        "simulations": sum(each.runs for some in found.values() for each in some),
    }


def _law_error(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How far the law is from the simulator where both serve somebody: the median, and the share within 15 %."""
    errors: dict[str, list[float]] = {name: [] for name in (*OF_SERVER, *OF_DEVICES)}
    for point in points:
        for name, users in point["capacity"].items():
            if users and point["law"][name]:
                errors[name].append(abs(point["law"][name] / users - 1))
    return {name: _error(each) for name, each in errors.items() if each}


def _error(errors: Sequence[float]) -> dict[str, float]:
    within = sum(error <= 0.15 for error in errors) / len(errors)
    return {"points": len(errors), "median": round(median(errors), 3), "within_15_percent": round(within, 3)}


def map_figure(quick: bool) -> dict[str, Any]:
    """The map's points, by the law."""
    servers = map.panels(map.CONTEXTS[:1]) if quick else map.panels()
    work = default_work()
    return {
        "figure": "map",
        "title": "Best mode and gain by the law",
        "label": "derived",
        "acceptance": work.acceptance.source,
        "points": [point.as_json() for point in map.points(servers, work)],
    }


def _write(folder: Path | None, figure: dict[str, Any], origin: dict[str, Any]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{figure['figure']}.json"
        path.write_text(json.dumps({**figure, "provenance": origin}, indent=1) + "\n")
        print(f"written: {path}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m opensled_testbed.bench.grid", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few places: shows that it runs, no more")
    parser.add_argument("--out", type=Path, help=f"folder; default {FOLDER}, and nowhere with --quick")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = arguments.out or (None if arguments.quick else FOLDER)
    origin = provenance(f"python -m opensled_testbed.bench.grid{' --quick' if arguments.quick else ''}")
    try:
        _write(out, map_figure(arguments.quick), origin)
        figure = measure(QUICK if arguments.quick else Axes())
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    _write(out, figure, origin)
    print(findings(figure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
