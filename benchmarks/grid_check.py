"""Some values of a grid measured again, to see that the code still gives what an earlier run of it wrote."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.grid_fill import place_of
from benchmarks.grid_place import OF_SERVER, Place, answers


class Value(NamedTuple):
    """One capacity as the document has it."""

    place: Place
    baseline: str
    users: int


def spot_check(document: dict[str, Any], acceptance: float, count: int, kept: Sequence[str]) -> int:
    """Measure `count` capacities of `kept` again, chosen at random but always the same; how many of them differ.

    What came of it is said on standard error and stands in the document's facts.
    """
    known = [value for point in document["points"] for value in _values(point, acceptance, kept)]
    chosen = random.Random(0).sample(known, min(count, len(known)))
    differing = [value for value in chosen if _again(value) != value.users]
    for value in differing:
        print(f"differs: {value.baseline} at {value.place}, was {value.users}", file=sys.stderr)
    found = {"values": len(chosen), "differing": len(differing), "baselines": list(kept)}
    document["facts"]["spot_check"] = found
    print(f"spot check: {len(differing)} of {len(chosen)} earlier capacities differ", file=sys.stderr)
    return len(differing)


def _values(point: dict[str, Any], acceptance: float, kept: Sequence[str]) -> list[Value]:
    place = place_of(point, acceptance)
    return [
        Value(replace(place, device="") if name in OF_SERVER else place, name, users)
        for name, users in point["capacity"].items()
        if name in kept
    ]


def _again(value: Value) -> int:
    (answer,) = answers(value.place, (value.baseline,))
    return answer.users
