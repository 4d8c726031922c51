"""grid.json as a document: begun, continued from an earlier one, and its figures over all places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lab.benchmarks.grid_place import LENGTHS, OF_DEVICES, OF_SERVER, SERVERS, Place, by_law, left_open
from lab.testbed.baselines import PARTS, PIPESD
from lab.testbed.planner import mode_map
from lab.testbed.planner.capacity_search import MOST, WARMUP_TOKENS, WINDOW_TOKENS
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from opensled.core.errors import UsageError

ALL = tuple(name for name in (*OF_SERVER, *OF_DEVICES) if name not in PARTS)
NAMED = (
    *ALL,
    PIPESD,
    *PARTS,
)  # what --only can name; those beyond ALL are measured where they were named once
WHOLE = "grid"  # name of the grid that has every place


class Axes(NamedTuple):
    """What the grid spans."""

    regimes: tuple[str, ...] = tuple(SERVERS)
    links: tuple[str, ...] = mode_map.LINKS
    devices: tuple[str, ...] = mode_map.DEVICES
    paces: tuple[float, ...] = mode_map.PACES

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "baselines": [*ALL]}


# Of a grid that leaves out what the law settles. Many users take long to simulate: one device and link stand for all.
SHORT = Axes(links=("wifi-good", "wan-80"), devices=("pi-5", "orin-nano-super", "laptop-cpu"))
MANY, FOR_MANY = 60, ("wifi-good", "orin-nano-super")
QUICK = Axes(links=("wifi-good", "lte"), devices=("pi-5", "laptop-cpu"), paces=(10,))


def begun(axes: Axes, source: RecordedDrafts, short: bool = False) -> dict[str, Any]:
    """A grid of which nothing is known yet; a short one has only places that the law leaves open, and no throughput."""
    places = [
        Place(regime, link, pace, source, device)
        for regime, pace, link, device in product(axes.regimes, axes.paces, axes.links, axes.devices)
    ]
    kept = [place for place in places if _in_short(place)] if short else places
    points = [_point(place) for place in kept]
    facts = {**_facts(short), **({"left_out": len(places) - len(kept)} if short else {})}
    return {
        "figure": name_of(source, short),
        "title": "Users one accelerator holds at a pace",
        "label": "simulated",
        "drafts": source.words,
        "source": source._asdict(),
        "facts": facts,
        "axes": axes.as_json(),
        "law_error": {},
        "points": points,
    }


def _in_short(place: Place) -> bool:
    return left_open(place) and (by_law(place) < MANY or (place.link, place.device) == FOR_MANY)


def _point(place: Place) -> dict[str, Any]:
    where = {"regime": place.regime, "link": place.link, "device": place.device, "pace": place.pace}
    return {**where, "capacity": {}, "draft_length": {}, "law": {}, "kv_full": []}


def name_of(source: RecordedDrafts, short: bool) -> str:
    """Of the file, without its suffix: the whole grid, or a short one by its drafts."""
    return f"{WHOLE}-{source.name}" if short else WHOLE


def source_of(document: Mapping[str, Any]) -> RecordedDrafts:
    """The drafts that a grid rests on."""
    return RecordedDrafts(
        **document.get("source", {"pair": "tiny"})
    )  # grids say so since there is a second pair


def without(document: dict[str, Any], baselines: Sequence[str]) -> dict[str, Any]:
    """The same without what it says about `baselines`: that is measured anew, all else stays as it was found."""
    for point in document["points"]:
        for name in baselines:
            for key in ("capacity", "draft_length", "law", "thresholds"):
                point.get(key, {}).pop(name, None)
            for load in point.get("throughput", ()):
                load["tokens_per_s"].pop(name, None)
        point["kv_full"] = [name for name in point["kv_full"] if name not in baselines]
    kept = {*ALL, *baselines, *document["axes"]["baselines"]}
    document["axes"]["baselines"] = [name for name in NAMED if name in kept]
    document["facts"] = {**_facts(document["figure"] != WHOLE), **document["facts"]}
    return document


def read(path: Path) -> dict[str, Any]:
    """Raises UsageError for a file that is no grid."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        assert isinstance(found["points"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(f"{path} holds no grid ({error}); measure it without --merge or --resume") from None
    return found


THROUGHPUT = (
    "tokens/s that reach users, with as many of them as the best of centralized, server-sd, sled-static and "
    "sled-continuous holds (at least one), and with half as many; in a window in which plain decoding writes 4,000 "
    "tokens, or 60 for each user"
)


def _facts(short: bool) -> dict[str, Any]:
    return {
        "capacity": "largest number of users of whom 90 % read at the pace, found by bisection, to within 2 %",
        **({} if short else {"throughput": THROUGHPUT}),
        "most_users": MOST,
        "warmup": f"{WARMUP_TOKENS} tokens at the pace",
        "window": f"{WINDOW_TOKENS} tokens at the pace",
        "draft_lengths": LENGTHS,
        "draft_wait": "1.5 times the mean time of a draft and its round trip, at least the server's default; opensled "
        "learns it by itself",
        "seconds": 0,
        "simulations": 0,
    }


def law_error(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Relative error of the law where speed, not memory, decides and both serve at least one user."""
    errors: dict[str, list[float]] = {name: [] for name in NAMED}
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
