"""The simulated grid: how many users a server holds, for each mode, over regimes, links, devices and paces.

    python -m lab.benchmarks.grid [--pair NAME] [--acceptance A] [--quick] [--out FOLDER] [--jobs N]

Capacity is the largest number of users of whom 90 % read at their pace, by bisection in the simulator; beside it stands
the law's word for it. All modes meet the same users with the same requests, and no place is left out. Plain decoding
and a draft beside the server use nothing of the device, so their capacities are simulated once for all devices.

Drafts are those recorded with --pair. With --acceptance, a number or the name of a task, drafts are made up, of which
that share is right. Writes grid-NAME.json, NAME being the pair or the acceptance. What is done is kept in a .part file
after each place: a run that was ended goes on from there.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lab.benchmarks.grid_place import LENGTHS, OF_DEVICES, OF_SERVER, SERVERS, Place, PlaceCapacity, answers
from lab.benchmarks.grid_view import ratios, summary
from lab.benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    mapped,
    parser_of,
    say,
    write_json,
)
from lab.testbed.planner import mode_map
from lab.testbed.planner.capacity_search import MOST, WARMUP_TOKENS, WINDOW_TOKENS
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.task_acceptance import TASKS, rates_of
from lab.testbed.provenance import provenance
from lab.testbed.recordings import DEFAULT_PAIR, PAIRS, check_pair
from opensled.core.errors import UsageError

WORKERS = 2

Point = dict[str, Any]
Grid = dict[str, Any]
Save = Callable[[], None]


class Axes(NamedTuple):
    """What a grid spans: each combination is a place."""

    regimes: tuple[str, ...] = tuple(SERVERS)
    links: tuple[str, ...] = ("wifi-good", "wan-80")
    devices: tuple[str, ...] = ("pi-5", "orin-nano-super", "laptop-cpu")
    paces: tuple[float, ...] = mode_map.PACES


QUICK = Axes(links=("wifi-good", "wan-80"), devices=("pi-5", "laptop-cpu"), paces=(10,))


class Asked(NamedTuple):
    """One unit of work; where the device does not matter the answer is that of several points."""

    place: Place
    modes: tuple[str, ...]
    near: int  # users that other modes are known to hold

    def run(self) -> list[PlaceCapacity]:
        return answers(self.place, self.modes, self.near)


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("grid", __doc__)
    add_quick_and_out(parser)
    add = parser.add_argument
    add("--pair", default=DEFAULT_PAIR, choices=PAIRS, help="whose drafts; default %(default)s")
    told = f"of made-up drafts: a number, or a name: {', '.join(TASKS)}"
    add("--acceptance", default="", metavar="A", help=told)
    add("--jobs", type=int, default=WORKERS, metavar="N", help="processes; default %(default)s")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: _measured(arguments, folder_of(arguments)))


def _measured(arguments: argparse.Namespace, out: Path | None) -> int:
    check_pair(arguments.pair)
    rates_of(arguments.acceptance)
    source = RecordedDrafts(arguments.pair, arguments.acceptance)
    target = out / f"{name_of(source)}.json" if out else None
    part = target.with_suffix(".part") if target else None
    if part and part.is_file():
        say(f"goes on with {part}")
        document = read(part)
        document.setdefault("pieces", []).append(provenance())
    else:
        document = {**begun(QUICK if arguments.quick else Axes(), source), "provenance": provenance()}
    document = filled(
        document, (lambda: write_json(part, document)) if part else lambda: None, arguments.jobs
    )
    if target and part:
        write_json(target, document)
        part.unlink(missing_ok=True)
        print(f"written: {target}")
    print(ratios([document]))
    return 0


def name_of(source: RecordedDrafts) -> str:
    """Of the file, without its suffix."""
    return f"grid-{source.name}"


def begun(axes: Axes, source: RecordedDrafts) -> Grid:
    """A grid of which nothing is known yet."""
    places = product(axes.regimes, axes.paces, axes.links, axes.devices)
    return {
        "figure": name_of(source),
        "title": "Users one accelerator holds at a pace",
        "label": "simulated",
        "drafts": source.words,
        "source": source._asdict(),
        "facts": {
            "capacity": "largest number of users of whom 90 % read at the pace, found by bisection, to within 2 %",
            "most_users": MOST,
            "warmup": f"{WARMUP_TOKENS} tokens at the pace",
            "window": f"{WINDOW_TOKENS} tokens at the pace",
            "draft_lengths": LENGTHS,
            "draft_wait": "1.5 times the mean time of a draft and its round trip, at least the server's default; "
            "opensled learns it by itself",
            "selection": "every combination of the axes",
            "seconds": 0,
            "simulations": 0,
        },
        "axes": axes._asdict(),
        "law_error": {},
        "points": [_point(*place) for place in places],
    }


def _point(regime: str, pace: float, link: str, device: str) -> Point:
    where = {"regime": regime, "link": link, "device": device, "pace": pace}
    return {**where, "capacity": {}, "draft_length": {}, "law": {}, "kv_full": []}


def source_of(document: Mapping[str, Any]) -> RecordedDrafts:
    """The drafts that a grid rests on."""
    return RecordedDrafts(**document["source"])


def read(path: Path) -> Grid:
    """Raises UsageError for a file that is no grid."""
    try:
        found: Grid = json.loads(path.read_text("utf-8"))
        assert isinstance(found["points"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(f"{path} holds no grid ({error}); remove it to measure anew") from None
    return found


# -- filling it -------------------------------------------------------------------------------------------------


def filled(document: Grid, save: Save, jobs: int = WORKERS) -> Grid:
    """`document` with all that it lacked; `save` is called after each unit of work."""
    points, facts, source = document["points"], document["facts"], source_of(document)
    for of_device in (False, True):  # a search for the devices begins with what the server holds alone
        for asked, found in _measure(list(_lacking(points, source, of_device)), facts, jobs):
            for answer in found:
                for point in points:
                    if asked.place == _place(point, source, of_device):
                        _put(point, answer)
            facts["simulations"] += sum(answer.runs for answer in found)
            save()
    return {**document, "law_error": law_error(points), "summary": summary(points)}


def _place(point: Point, source: RecordedDrafts, of_device: bool) -> Place:
    device = point["device"] if of_device else ""
    return Place(point["regime"], point["link"], point["pace"], source, device)


def _lacking(points: Sequence[Point], source: RecordedDrafts, of_device: bool) -> Iterator[Asked]:
    """What the modes in which the device matters, or those in which it does not, still lack."""
    asked = set()
    for point in points:
        place = _place(point, source, of_device)
        names = OF_DEVICES if of_device else OF_SERVER
        lacking = tuple(name for name in names if name not in point["capacity"])
        if lacking and place not in asked:
            asked.add(place)
            yield Asked(place, lacking, max(point["capacity"].values(), default=0))


def _put(point: Point, answer: PlaceCapacity) -> None:
    name = answer.baseline
    point["capacity"][name] = answer.users
    point["draft_length"][name] = answer.draft_length
    point["law"][name] = answer.law
    if name == "centralized":
        point["kv_fits"] = answer.kv_fits
    if answer.users == answer.kv_fits:
        point["kv_full"].append(name)


def _measure(
    work: Sequence[Asked], facts: dict[str, Any], jobs: int
) -> Iterator[tuple[Asked, list[PlaceCapacity]]]:
    """Each unit of `work` with what came of it."""
    started, before = time.monotonic(), facts["seconds"]
    for done, (found, unit) in enumerate(zip(mapped(Asked.run, work, jobs), work), 1):
        spent = time.monotonic() - started
        facts["seconds"] = round(before + spent)
        yield unit, found
        if done % 10 == 0 or done == len(work):
            say(f"{done} of {len(work)}, {spent:.0f} s, about {spent / done * (len(work) - done):.0f} s left")


def law_error(points: Sequence[Point]) -> dict[str, Any]:
    """Relative error of the law where speed, not memory, decides and both serve at least one user."""
    errors: dict[str, list[float]] = {name: [] for name in (*OF_SERVER, *OF_DEVICES)}
    for point in points:
        for name, users in point["capacity"].items():
            expected = point["law"][name]
            by_memory = name in point["kv_full"] and users == expected
            if users and expected and not by_memory:
                errors[name].append(abs(expected / users - 1))
    return {
        name: {
            "points": len(each),
            "median": round(median(each), 3),
            "within_15_percent": round(sum(error <= 0.15 for error in each) / len(each), 3),
        }
        for name, each in errors.items()
        if each
    }


if __name__ == "__main__":
    raise SystemExit(main())
