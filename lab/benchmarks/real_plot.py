"""Ratios as a picture: each drafter over no drafts, by kind of text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lab.benchmarks.picture import ACCENT, DARK, OTHER, OURS, THEIRS, write_picture
from lab.benchmarks.real_contenders import BOTH
from lab.benchmarks.real_view import ENOUGH

COLOURS = (OURS, OTHER, ACCENT, "#8e5bb5", "#c0475b", "#5c7f2a", "#4a4a4a", THEIRS)
OVER_ALL = "all kinds"
Run = Mapping[str, Any]


def write_plot(runs: Mapping[str, Run], path: Path) -> None:
    """One panel for each run, by its title; dots are means, lines their intervals."""
    write_picture(lambda: plot(runs), path)


def plot(runs: Mapping[str, Run]) -> Figure:
    """At least one run."""
    compared = dict.fromkeys(name for run in runs.values() for name in run["over the kinds"])
    names = [name for name in compared if name != BOTH]
    rows = -(-len(runs) // 2)
    figure = Figure(figsize=(6.2 * min(2, len(runs)), 0.3 + 4.2 * rows), facecolor="white")
    panels = figure.subplots(rows, min(2, len(runs)), squeeze=False).ravel()
    for axis, (title, run) in zip(panels, runs.items()):
        _panel(axis, title, run, names)
    for axis in panels[len(runs) :]:
        axis.set_visible(False)
    told = [pair for axis in panels for pair in zip(*axis.get_legend_handles_labels())]
    handles = {label: handle for handle, label in told}  # a run may lack some of the names
    figure.legend(handles.values(), handles, loc="lower center", ncols=min(4, len(handles)), frameon=False)
    figure.subplots_adjust(hspace=0.35, wspace=0.28, bottom=0.02 + 0.2 / rows)
    return figure


def _panel(axis: Any, title: str, run: Run, names: Sequence[str]) -> None:
    lines = {**run["ratios"], OVER_ALL: run["over the kinds"]}
    step = 0.8 / max(1, len(names))
    for place, ratios in enumerate(lines.values()):
        for number, name in enumerate(names):
            if name in ratios:
                _mark(
                    axis,
                    place + step * (number - (len(names) - 1) / 2),
                    ratios[name],
                    name,
                    number,
                    not place,
                )
    axis.axvline(1, color=DARK, lw=0.8)
    axis.axvline(ENOUGH, color=ACCENT, lw=0.8, ls=":")
    axis.axhline(len(lines) - 1.5, color=DARK, lw=0.4)
    axis.set_yticks(range(len(lines)), list(lines))
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xlim(left=0)
    axis.tick_params(axis="y", length=0)
    axis.set_title(title, fontsize=9.5, loc="left")
    axis.set_xlabel("tokens/s over no drafts")


def _mark(
    axis: Any, place: float, found: Mapping[str, float], name: str, number: int, labelled: bool
) -> None:
    colour = COLOURS[number % len(COLOURS)]
    axis.plot([found["low"], found["high"]], [place, place], color=colour, lw=1.6, alpha=0.5)
    axis.plot([found["mean"]], [place], "o", ms=4, color=colour, label=name if labelled else None)
