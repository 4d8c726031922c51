"""look_ahead.json as a picture: every cell's contenders over centralized decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.look_ahead_cells import ADAPTIVE, CENTRALIZED, EVERYTHING, PLAIN
from benchmarks.look_ahead_view import ENOUGH, NAMES, Document, Entry, ratio
from benchmarks.picture import DARK, write_picture
from opensled_testbed.report.plots import ACCENT, OTHER, OURS, THEIRS

COLOURS = {PLAIN: THEIRS, ADAPTIVE: OTHER, EVERYTHING: OURS}
PANELS = {
    "hub": "bandwidth-poor: 8B at 8 bits on an AGX Orin",
    "dense-8k": "dense, 8k context: 32B on an H200",
}


def write_plot(document: Document, path: Path) -> None:
    """Each cell's contenders over centralized decoding, which is 1; crosses are simulated."""
    write_picture(lambda: plot(document), path)


def plot(document: Document) -> Figure:
    """One panel for each server."""
    figure = Figure(figsize=(12.0, 4.2), facecolor="white")
    axes = figure.subplots(1, len(PANELS), sharex=True, squeeze=False)[0]
    for axis, (regime, title) in zip(axes, PANELS.items()):
        _panel(axis, [cell for cell in document["cells"] if cell["regime"] == regime])
        axis.set_title(title, fontsize=9.5, loc="left")
        axis.set_xlabel("tokens/s of a user over centralized decoding")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.subplots_adjust(wspace=0.6, bottom=0.2)
    return figure


def _panel(axis: Any, cells: Sequence[Entry]) -> None:
    for place, cell in enumerate(cells):
        for number, (contender, colour) in enumerate(COLOURS.items()):
            _mark(axis, place + 0.22 * (number - 1), cell, contender, colour, labelled=not place)
    axis.axvline(1, color=DARK, lw=0.8)
    axis.axvline(ENOUGH, color=ACCENT, lw=0.8, ls=":")
    names = [f"{cell['device']}, {cell['link']}" for cell in cells]
    axis.set_yticks(range(len(cells)), names)
    axis.set_xlim(left=0)
    axis.set_ylim(len(cells) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)


def _mark(axis: Any, place: float, cell: Entry, contender: str, colour: str, labelled: bool) -> None:
    found, simulated = (ratio(cell, contender, CENTRALIZED, key) for key in ("rates", "simulated"))
    if found:
        axis.plot([found.low, found.high], [place, place], color=colour, lw=2, alpha=0.5)
        axis.plot(
            [found.mean], [place], "o", ms=5, color=colour, label=NAMES[contender] if labelled else None
        )
    if simulated:
        last = labelled and contender == EVERYTHING
        axis.plot([simulated.mean], [place], "x", ms=5, mec=DARK, label="simulated" if last else None)
