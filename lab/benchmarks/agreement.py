"""Emulated against simulated: how far the simulator may be believed."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from lab.benchmarks import cell_figures as cells
from lab.benchmarks.cell_figures import Cell

BOUND = 0.15  # of the emulated value; the aim of the project
HEAD = ("mode", "cells", "tokens/s: median error", "largest", "pace of a user: median error", "largest")
KEYS = {"output_throughput": "throughput, tokens/s", "pace_mean": "pace of a user, tokens/s"}


class Compared(NamedTuple):
    """One quantity of one baseline in one cell."""

    cell: str
    baseline: str
    title: str
    emulated: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative to the emulated value."""
        return self.simulated / self.emulated - 1

    def __str__(self) -> str:
        off = "" if abs(self.error) <= BOUND else f"  off by more than {BOUND:.0%}"
        return f"{self.cell}, {self.baseline}: {self.title}: {self.error:+.1%}{off}"


def compared(cell: Cell) -> Iterator[Compared]:
    """Whatever was both emulated and simulated."""
    for baseline in cells.baselines(cell):
        for key, title in KEYS.items():
            emulated, simulated = cells.measured(cell, baseline, key), cells.simulated(cell, baseline, key)
            if emulated and emulated.mean and simulated:
                yield Compared(cell["id"], baseline, title, emulated.mean, simulated)


def errors(cells_there: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Under HEAD: how far the simulator is from the emulated cells, for each mode."""
    found = [each for cell in cells_there for each in compared(cell)]
    modes = dict.fromkeys(each.baseline for each in found)
    return [_row(mode, [each for each in found if each.baseline == mode]) for mode in modes]


def _row(mode: str, found: Sequence[Compared]) -> tuple[str, ...]:
    off = {title: [each.error for each in found if each.title == title] for title in KEYS.values()}
    told = [
        word
        for values in off.values()
        for word in (f"{median(map(abs, values)):.1%}", f"{max(values, key=abs):+.1%}")
    ]
    return (mode, str(len({each.cell for each in found})), *told)
