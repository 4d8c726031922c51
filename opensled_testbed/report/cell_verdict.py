"""Whether OpenSLED is ever worse than the best of the others on the emulated cells, within what repeats can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opensled_testbed.baselines import OPENSLED, RIVALS
from opensled_testbed.load.interval import Interval, interval

ENOUGH = 0.95  # that the 95 % interval must include or exceed
KEYS = {"output_throughput": "throughput", "pace_mean": "pace of a user"}

Cell = Mapping[str, Any]


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
        for key, figure in KEYS.items():
            found = _share(cell, key)
            if found is not None:
                yield CellShare(str(cell["id"]), figure, *found)


def _share(cell: Cell, key: str) -> tuple[str, Interval] | None:
    """The rival with the highest mean, and the interval of the ratios to it; None without runs of both."""
    ours = _by_repeat(cell, OPENSLED, key)
    rivals = {name: found for name in RIVALS if (found := _by_repeat(cell, name, key))}
    if not ours or not rivals:
        return None
    best = max(rivals, key=lambda name: interval(list(rivals[name].values())).mean)
    pairs = [ours[repeat] / value for repeat, value in rivals[best].items() if repeat in ours and value]
    return (best, interval(pairs)) if pairs else None


def _by_repeat(cell: Cell, baseline: str, key: str) -> dict[int, float]:
    runs = (run for run in cell["runs"] if run["baseline"] == baseline and not run["live"])
    return {run["repeat"]: value for run in runs if (value := run["summary"].get(key)) is not None}
