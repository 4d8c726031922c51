"""The simulated grid: capacity of every baseline over regimes, links, devices and paces, beside the law's word for it.

    python -m opensled_testbed.bench.grid [--quick] [--acceptance RATE] [--out FOLDER]

Capacity is the largest number of users of whom 90 % read at their pace, by bisection in the simulator; all baselines
meet the same users with the same requests. Plain decoding and a draft beside the server use nothing of the device, so
they are simulated once for all devices. Writes grid.json, and map.json by the law alone. With --acceptance drafts are
made up, of which that share is right, as of a draft model that was adapted to its target; writes grid-adapted.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from opensled.cli import INTERRUPTED
from opensled.errors import OpenSledError
from opensled_testbed.bench.figure import provenance
from opensled_testbed.bench.grid_place import LENGTHS, OF_DEVICES, OF_SERVER, SERVERS, Answer, Place, answers
from opensled_testbed.planner import map
from opensled_testbed.planner.capacity import MOST, WARMUP_TOKENS, WINDOW_TOKENS
from opensled_testbed.planner.findings import findings
from opensled_testbed.planner.setting import default_work

FOLDER = Path("docs/benchmarks")
WORKERS = 2


class Axes(NamedTuple):
    """What the grid spans."""

    regimes: tuple[str, ...] = tuple(SERVERS)
    links: tuple[str, ...] = map.LINKS
    devices: tuple[str, ...] = map.DEVICES
    paces: tuple[float, ...] = map.PACES

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "baselines": [*OF_SERVER, *OF_DEVICES]}


ADAPTED = Axes(links=("wifi-good", "5g", "wan-80"))
QUICK = Axes(links=("wifi-good", "lte"), devices=("pi-5", "laptop-cpu"), paces=(10,))


def places(axes: Axes, acceptance: float = 0.0) -> Iterator[Place]:
    """All units of work, the long ones first so that no worker idles at the end."""
    for regime in axes.regimes:
        for pace in axes.paces:
            for link in axes.links:
                yield Place(regime, link, pace, acceptance=acceptance)
                yield from (Place(regime, link, pace, device, acceptance) for device in axes.devices)


def measure(axes: Axes, acceptance: float = 0.0) -> dict[str, Any]:
    """The whole grid, on WORKERS processes."""
    work, found = list(places(axes, acceptance)), dict[Place, list[Answer]]()
    started = time.monotonic()
    for place, some in _answered(work):
        found[place] = some
        _progress(len(found), len(work), time.monotonic() - started)
    points = [_point(place, found) for place in work if place.device]
    return {
        "figure": "grid-adapted" if acceptance else "grid",
        "title": "Users one accelerator holds at a pace",
        "label": "simulated",
        "drafts": f"made up, {acceptance:g} of them right"
        if acceptance
        else "as recorded with the tiny family",
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
        "kv_fits": next(each.kv_fits for each in some if each.baseline == "centralized"),
        "kv_full": [each.baseline for each in some if each.users == each.kv_fits],
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
    """How far the law is from the simulator where speed and not memory decides, and both serve somebody."""
    errors: dict[str, list[float]] = {name: [] for name in (*OF_SERVER, *OF_DEVICES)}
    for point in points:
        for name, users in point["capacity"].items():
            expected = point["law"][name]
            by_memory = name in point["kv_full"] and users == expected
            if users and expected and not by_memory:
                errors[name].append(abs(expected / users - 1))
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


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m opensled_testbed.bench.grid", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few places: shows that it runs, no more")
    parser.add_argument(
        "--acceptance", type=float, default=0.0, metavar="RATE", help="of drafts that are made up"
    )
    parser.add_argument("--out", type=Path, help=f"folder; default {FOLDER}, and nowhere with --quick")
    arguments = parser.parse_args(words)
    if not 0 <= arguments.acceptance < 1:
        parser.error(f"--acceptance {arguments.acceptance:g}: from 0 to below 1 is needed")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = arguments.out or (None if arguments.quick else FOLDER)
    rate = arguments.acceptance
    flags = " --quick" * arguments.quick + f" --acceptance {rate:g}" * bool(rate)
    origin = provenance(f"python -m opensled_testbed.bench.grid{flags}")
    try:
        if not rate:
            _write(out, map_figure(arguments.quick), origin)
        axes = ADAPTED if rate else Axes()
        figure = measure(QUICK if arguments.quick else axes, rate)
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
