"""Emulated against simulated: how far the simulator may be believed."""

from collections.abc import Iterator
from typing import NamedTuple

from lab.benchmarks import cell_figures as cells
from lab.benchmarks.cell_figures import Cell

BOUND = 0.15  # of the emulated value; the aim of the project
KEYS = {"output_throughput": "throughput, tokens/s", "pace_mean": "pace of a user, tokens/s"}
CAPACITY = "capacity, users"


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
    for entry in cell.get("capacity", ()):
        pair = entry.get("emulated"), entry.get("simulated")
        if all(map(cells.is_number, pair)) and all(pair):
            yield Compared(cell["id"], entry["baseline"], CAPACITY, *pair)
