"""How many users a server holds at their pace, in the emulated cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opensled_testbed.report import cell_figures as cells
from opensled_testbed.report.cell_figures import OTHER_TEXT, OURS, PLAIN
from opensled_testbed.report.html import Html, Section, loss, paragraph, table
from opensled_testbed.report.results import Result


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
    """Who holds the most users beside OpenSLED."""
    rivals = {name: count for name, count in by_baseline.items() if name not in (OURS, OTHER_TEXT)}
    return max(rivals, key=lambda name: rivals[name]) if rivals else None


def loses(by_baseline: Mapping[str, float], name: str = OURS) -> bool:
    """Whether another way to serve the same text holds more users."""
    others = [count for other, count in by_baseline.items() if other not in (name, OTHER_TEXT)]
    return name in by_baseline and bool(others) and by_baseline[name] < max(others)


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
    return loss(shown) if name == OURS and loses(found) else shown
