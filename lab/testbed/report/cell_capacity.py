"""How many users a server holds at their pace, in the emulated cells."""

from collections.abc import Mapping
from typing import Any

from lab.testbed.report import cell_figures as cells
from lab.testbed.report.cell_figures import NO_RIVALS, OURS, PLAIN
from lab.testbed.report.html import Html, Section, loss, paragraph, table
from lab.testbed.report.results import Result


def section(result: Result) -> Section | None:
    """The table of regimes.json; None if no cell has capacities."""
    found = [cell for cell in result.content["cells"] if cell.get("capacity")]
    if not found:
        return None
    note = paragraph(
        "Most users of whom nine in ten are served at their pace: emulated / simulated. Simulated: by bisection. "
        "Emulated: the most that held out of a few numbers around it, where one machine can play so many devices. In "
        "brackets: the ratio of the simulated ones to centralized. ▼: below the best rival for the same text.",
        kind="note",
    )
    names = list(dict.fromkeys(entry["baseline"] for cell in found for entry in cell["capacity"]))
    rows = [[cell["id"], *(_capacity(cell, name) for name in names)] for cell in found]
    return Section("capacity", "Capacity of the cells", note + table(["cell", *names], rows))


def capacities(cell: Mapping[str, Any]) -> dict[str, float]:
    """By baseline: simulated, for those are found alike for all; emulated ones only if nothing was simulated."""
    entries = cell.get("capacity", ())
    for key in ("simulated", "emulated"):
        found = {entry["baseline"]: float(entry[key]) for entry in entries if cells.is_number(entry.get(key))}
        if found:
            return found
    return {}


def best_rival(by_baseline: Mapping[str, float]) -> str | None:
    """Which other way to serve the same text holds more users than OpenSLED, and the most; None where none does."""
    rivals = {name: count for name, count in by_baseline.items() if name not in NO_RIVALS}
    best = max(rivals, key=lambda name: rivals[name], default="")
    return best if OURS in by_baseline and best and rivals[best] > by_baseline[OURS] else None


def _capacity(cell: Mapping[str, Any], name: str) -> str | Html:
    entry = next((each for each in cell["capacity"] if each["baseline"] == name), None)
    if entry is None:
        return "–"
    found = capacities(cell)
    shown = " / ".join(
        cells.short(entry[key]) if cells.is_number(entry.get(key)) else "–"
        for key in ("emulated", "simulated")
    )
    if name != PLAIN and name in found and found.get(PLAIN):
        shown += f" ({found[name] / found[PLAIN]:.2f}x)"
    return loss(shown) if name == OURS and best_rival(found) else shown
