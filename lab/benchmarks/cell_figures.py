"""What regimes.json says about a cell: repeats as intervals."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from lab.testbed.baselines import BASELINES
from lab.testbed.load.interval import Interval, interval

Cell = Mapping[str, Any]


def baselines(cell: Cell) -> list[str]:
    """Those that were run, in the usual order."""
    there = {run["baseline"] for run in cell["runs"]}
    return [name for name in BASELINES if name in there] + sorted(there - set(BASELINES))


def repeats(cell: Cell, baseline: str, key: str) -> list[float]:
    """One value for each repeat that has one."""
    # Figures of before have runs with live drafters as well
    runs = (run for run in cell["runs"] if run["baseline"] == baseline and not run.get("live"))
    return [value for run in runs if is_number(value := run["summary"].get(key))]


def measured(cell: Cell, baseline: str, key: str) -> Interval | None:
    """Over the repeats with recorded drafts."""
    values = repeats(cell, baseline, key)
    return interval(values) if values else None


def simulated(cell: Cell, baseline: str, key: str) -> float | None:
    """Mean of its simulated runs."""
    runs = (run for run in cell.get("simulated", ()) if run["baseline"] == baseline)
    values = [value for run in runs if is_number(value := run["summary"].get(key))]
    return fmean(values) if values else None


def is_number(value: object) -> bool:
    """Finite ones only: "not a number" is written where nothing was measured."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
