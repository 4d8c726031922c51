"""Emulated against simulated: how far the simulator may be believed."""

from collections.abc import Iterator
from typing import NamedTuple

from lab.testbed.report import cell_figures as cells
from lab.testbed.report.cell_figures import OURS, Cell
from lab.testbed.report.html import Section, folded, paragraph, plot, table
from lab.testbed.report.plots_maps import agreement
from lab.testbed.report.results import Result

BOUND = 0.15  # of the emulated value; the aim of the project
KEYS = {"output_throughput": "throughput, tokens/s", "pace_mean": "pace of a user, tokens/s"}
CAPACITY = "capacity, users"
SHOWN = 6  # rows of the table that are open in any case, the worst first
WORDS = (0, 1, 2)  # columns


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


def section(result: Result) -> Section | None:
    """None if nothing of regimes.json was simulated."""
    found = [each for cell in result.content["cells"] for each in compared(cell)]
    if not found:
        return None
    panels = {
        title: [
            (each.emulated, each.simulated, each.baseline == OURS) for each in found if each.title == title
        ]
        for title in dict.fromkeys(each.title for each in found)
    }
    within = sum(abs(each.error) <= BOUND for each in found)
    words = paragraph(
        f"{within} of {len(found)} quantities agree within {BOUND:.0%} (the band). Circles lie inside, squares "
        f"outside; {OURS} in blue. Error: simulated over emulated, less 1; □: outside the band.",
        kind="note",
    )
    drawn = plot(agreement("agreement", "simulated against emulated values, see the table", panels, BOUND))
    rows = [_row(each) for each in sorted(found, key=lambda each: -abs(each.error))]
    worst = max(SHOWN, len(found) - within)
    head = ["cell", "baseline", "quantity", "emulated", "simulated", "error"]
    tables: str = table(head, rows[:worst], words=WORDS)
    if rows[worst:]:
        tables += folded(f"{len(rows) - worst} more", table(head, rows[worst:], words=WORDS))
    return Section("agreement", "Emulated against simulated", words + drawn + tables)


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


def _row(each: Compared) -> list[object]:
    error = f"{each.error:+.0%}"
    return [
        each.cell,
        each.baseline,
        each.title,
        cells.short(each.emulated),
        cells.short(each.simulated),
        f"□ {error}" if abs(each.error) > BOUND else error,
    ]
