"""What a grid still lacks, measured on several processes: first capacities, then throughput at two loads.

The loads of a place are the most users that any of RIVALS holds there, at least one, and half of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import active_children
from typing import Any, NamedTuple

from lab.benchmarks.grid_place import OF_DEVICES, OF_SERVER, Place, PlaceCapacity, answers, rates
from lab.benchmarks.program import SPAWN, end_with_parent, say
from lab.testbed.baselines import PIPESD, RIVALS
from lab.testbed.planner.recorded_drafts import RecordedDrafts

WORKERS = 2
RATED = (*RIVALS, "opensled")  # baselines whose throughput is asked

Point = dict[str, Any]
Save = Callable[[], None]


class Capacities(NamedTuple):
    """One unit of work; where the device does not matter the answer is that of several points."""

    place: Place
    baselines: tuple[str, ...]
    near: int  # users that others are known to hold

    def run(self) -> list[PlaceCapacity]:
        return answers(self.place, self.baselines, self.near)


class Rates(NamedTuple):
    """Another: throughput with so many users."""

    place: Place
    users: int
    lengths: tuple[tuple[str, int], ...]  # draft length of each baseline

    def run(self) -> dict[str, float]:
        return rates(self.place, self.users, dict(self.lengths))


def fill(
    document: dict[str, Any], source: RecordedDrafts, save: Save, jobs: int = WORKERS, throughput: bool = True
) -> None:
    """Add whatever its points lack, on `jobs` processes; `save` is called after each unit of work."""
    points, facts = document["points"], document["facts"]
    lacking = list(_lacking_capacities(points, source, document["axes"]["baselines"]))
    for work, found in _measured(lacking, facts, jobs):
        _put_capacities(points, work, found, facts)
        save()
    unrated = list(_lacking_rates(points, source)) if throughput else []
    for load, tokens_per_s in _measured(unrated, facts, jobs):
        _put_rates(points, load, tokens_per_s, facts)
        save()


def place_of(point: Point, source: RecordedDrafts) -> Place:
    return Place(point["regime"], point["link"], point["pace"], source, point["device"])


def best_of_rivals(point: Point) -> int:
    """Users that the best of RIVALS holds; 0 if none of them is known or serves a user."""
    return max((point["capacity"].get(name, 0) for name in RIVALS), default=0)


def loads_of(point: Point) -> tuple[int, ...]:
    """Numbers of users at which throughput is compared."""
    most = max(1, best_of_rivals(point))
    return tuple(dict.fromkeys((most, max(1, most // 2))))


def _lacking_capacities(
    points: Sequence[Point], source: RecordedDrafts, asked_for: Sequence[str]
) -> Iterator[Capacities]:
    """In the order of the points, long ones first: those of the server alone before those of its devices."""
    asked = set()
    for point in points:
        place = place_of(point, source)
        alone = replace(place, device="")
        for each, names in ((alone, OF_SERVER), (place, (*OF_DEVICES, PIPESD))):
            lacking = tuple(name for name in names if name in asked_for and name not in point["capacity"])
            if lacking and each not in asked:
                asked.add(each)
                yield Capacities(each, lacking, best_of_rivals(point))


def _lacking_rates(points: Sequence[Point], source: RecordedDrafts) -> Iterator[Rates]:
    for point in points:
        for users in loads_of(point):
            known = _rates_at(point, users)
            lengths = [(name, point["draft_length"][name]) for name in RATED if name not in known]
            if lengths:
                yield Rates(place_of(point, source), users, tuple(lengths))


def _rates_at(point: Point, users: int) -> dict[str, float]:
    found = (each["tokens_per_s"] for each in point.get("throughput", ()) if each["users"] == users)
    return next(found, {})


def _put_capacities(
    points: Sequence[Point], work: Capacities, found: Sequence[PlaceCapacity], facts: dict[str, Any]
) -> None:
    for point in points:
        place = place_of(point, work.place.source)
        if work.place in (place, replace(place, device="")):
            for answer in found:
                _put(point, answer)
    facts["simulations"] += sum(answer.runs for answer in found)


def _put(point: Point, answer: PlaceCapacity) -> None:
    name = answer.baseline
    point["capacity"][name] = answer.users
    point["draft_length"][name] = answer.draft_length
    point["law"][name] = answer.law
    if answer.thresholds:
        point.setdefault("thresholds", {})[name] = [*answer.thresholds]
    if name == "centralized":
        point["kv_fits"] = answer.kv_fits
    full = [other for other in point["kv_full"] if other != name]
    point["kv_full"] = [*full, name] if answer.users == answer.kv_fits else full


def _put_rates(points: Sequence[Point], load: Rates, found: dict[str, float], facts: dict[str, Any]) -> None:
    """What was measured at loads that are none any more goes."""
    for point in points:
        if place_of(point, load.place.source) == load.place:
            known = {users: _rates_at(point, users) for users in loads_of(point)}
            known[load.users] = {**known[load.users], **found}
            point["throughput"] = [{"users": users, "tokens_per_s": each} for users, each in known.items()]
    facts["simulations"] += len(found)


def _measured(work: Sequence[Any], facts: dict[str, Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Each unit of `work` with what came of it, as they come."""
    started, before = time.monotonic(), facts["seconds"]
    for done, (unit, found) in enumerate(_answered(work, jobs), 1):
        spent = time.monotonic() - started
        facts["seconds"] = round(before + spent)
        yield unit, found
        if done % 20 == 0 or done == len(work):
            left = spent / done * (len(work) - done)
            line = f"{done} of {len(work)}, {spent:.0f} s, about {left:.0f} s left"
            say(f"{type(unit).__name__.lower()}: {line}")


def _answered(work: Sequence[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """On `jobs` processes, 1 = this one alone; an interrupt ends these as well."""
    if jobs == 1 or not work:
        yield from ((unit, unit.run()) for unit in work)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=SPAWN, initializer=end_with_parent)
    try:
        asked = {pool.submit(_run, unit): unit for unit in work}
        for done in as_completed(asked):
            yield asked[done], done.result()
    except BaseException:
        for process in active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _run(unit: Capacities | Rates) -> Any:
    return unit.run()
