"""What regimes.json says about a cell: repeats as intervals, and OpenSLED over the best of the others."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from lab.testbed.baselines import BASELINES, RIVALS
from lab.testbed.baselines import OPENSLED as OURS
from lab.testbed.load.interval import Interval, interval

Cell = Mapping[str, Any]
ENOUGH = 0.95  # of the best rival: the 95 % interval must include or exceed it
SHARED = {"output_throughput": "throughput", "pace_mean": "pace of a user"}


def baselines(cell: Cell) -> list[str]:
    """Those that were run, in the usual order."""
    there = {run["baseline"] for run in cell["runs"]}
    return [name for name in BASELINES if name in there] + sorted(there - set(BASELINES))


def repeats(cell: Cell, baseline: str, key: str) -> list[float]:
    """One value for each repeat that has one."""
    runs = (run for run in cell["runs"] if run["baseline"] == baseline and not run["live"])
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


class CellShare(NamedTuple):
    """OpenSLED over the best of RIVALS in one cell, repeat by repeat: each pair met the same users."""

    cell: str
    figure: str
    rival: str
    share: Interval

    @property
    def kept(self) -> bool:
        return self.share.high >= ENOUGH

    def __str__(self) -> str:
        mean, low, high = self.share
        verdict = "kept" if self.kept else f"BELOW {ENOUGH}"
        return f"{self.cell}: {self.figure} {mean:.3f} ({low:.3f} to {high:.3f}) of {self.rival}: {verdict}"


def shares(cells: Sequence[Cell]) -> Iterator[CellShare]:
    """Of every cell in which OpenSLED and a rival were run; live runs are left out."""
    for cell in cells:
        for key, figure in SHARED.items():
            found = _share(cell, key)
            if found is not None:
                yield CellShare(str(cell["id"]), figure, *found)


def _share(cell: Cell, key: str) -> tuple[str, Interval] | None:
    """The rival with the highest mean, and the interval of the ratios to it; None without runs of both."""
    ours = _by_repeat(cell, OURS, key)
    rivals = {name: found for name in RIVALS if (found := _by_repeat(cell, name, key))}
    if not ours or not rivals:
        return None
    best = max(rivals, key=lambda name: interval(list(rivals[name].values())).mean)
    pairs = [ours[repeat] / value for repeat, value in rivals[best].items() if repeat in ours and value]
    return (best, interval(pairs)) if pairs else None


def _by_repeat(cell: Cell, baseline: str, key: str) -> dict[int, float]:
    runs = (run for run in cell["runs"] if run["baseline"] == baseline and not run["live"])
    return {run["repeat"]: value for run in runs if (value := run["summary"].get(key)) is not None}
