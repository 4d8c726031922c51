"""Bars with error bars, one panel for each metric; and ratios around 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from lab.testbed.load.interval import Interval
from lab.testbed.report.html import counted, is_behind
from lab.testbed.report.plots import ACCENT, INK, OURS, THEIRS, styled, svg


@dataclass(frozen=True)
class Bar:
    """One baseline in one panel."""

    name: str
    value: Interval | None  # None = not measured
    live: Sequence[float] = ()  # repeats with the real drafters
    simulated: float | None = None
    ours: bool = False


@dataclass(frozen=True)
class Panel:
    """One metric."""

    title: str
    bars: Sequence[Bar]
    wanted: float | None = None  # a line: what users were promised
    marks: Sequence[str] = field(default_factory=tuple)  # names of bars that lose


def bars(name: str, alt: str, panels: Sequence[Panel]) -> str:
    """Panels side by side; all have the same bars in the same order."""
    with styled(name):
        height = 0.75 + 0.3 * len(panels[0].bars)
        figure = Figure(figsize=(11, height))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels):
            _panel(axis, panel)
        axes[0].set_yticks(range(len(panels[0].bars)), [bar.name for bar in panels[0].bars])
        axes[0].invert_yaxis()
        figure.subplots_adjust(wspace=0.12)
        return svg(figure, name, alt)


def _panel(axis: Any, panel: Panel) -> None:
    for place, bar in enumerate(panel.bars):
        if bar.value:
            _bar(axis, place, bar, bar.name in panel.marks)
        axis.plot(bar.live, [place] * len(bar.live), "D", ms=5, mfc="none", mec=ACCENT, mew=1.4)
        if bar.simulated is not None:
            axis.plot([bar.simulated], [place], "x", ms=6, mec=INK, mew=1.2)
    if panel.wanted is not None:
        axis.axvline(panel.wanted, color=ACCENT, lw=1.2, ls="--")
    axis.set_title(panel.title, fontsize=9.5, loc="left")
    axis.set_xlim(0, 1.3 * max(map(_end, panel.bars)) or 1)  # room for the numbers
    axis.locator_params(axis="x", nbins=5)
    axis.tick_params(axis="y", length=0)


def _bar(axis: Any, place: int, bar: Bar, loses: bool) -> None:
    assert bar.value
    mean, low, high = bar.value
    spread = [[mean - low], [high - mean]]
    look = {"color": OURS if bar.ours else THEIRS, "height": 0.62, "ecolor": INK, "capsize": 2.5}
    axis.barh(place, mean, xerr=spread, error_kw={"elinewidth": 1}, hatch="////" if loses else "", **look)
    shown = f"{'▼ ' if loses else ''}{f'{mean:.3g}' if mean < 1000 else f'{mean:,.0f}'}"
    axis.annotate(shown, (_end(bar), place), (8, 0), textcoords="offset points", va="center")


def _end(bar: Bar) -> float:
    """Right of everything drawn for a bar."""
    return max(bar.value.high if bar.value else 0, *bar.live, bar.simulated or 0)


def ratios(name: str, alt: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Points with their spread on a logarithmic axis; left of 1 OpenSLED loses, and the point is hollow.

    `rows`: the "ratios" of a Figure, each with the lowest and the highest of its repeats.
    """
    with styled(name):
        figure = Figure(figsize=(9, 0.7 + 0.24 * len(rows)))
        axis = figure.subplots()
        axis.set_xscale("log")
        for place, row in enumerate(rows):
            _ratio(axis, place, row)
        axis.axvline(1, color=INK, lw=0.8)
        axis.set_yticks(range(len(rows)), [counted(row["name"]) for row in rows])
        axis.set_xticks(*_ticks(rows))
        axis.minorticks_off()
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        return svg(figure, name, alt)


def _ratio(axis: Any, place: int, row: Mapping[str, Any]) -> None:
    loses = is_behind(row["ratio"])
    colour = ACCENT if loses else OURS
    axis.plot([row["lowest"], row["highest"]], [place, place], color=colour, lw=2, alpha=0.6)
    axis.plot([row["ratio"]], [place], "o", ms=6, mec=colour, mfc="none" if loses else colour, mew=1.5)


def _ticks(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str]]:
    low, high = min(row["lowest"] for row in rows), max(row["highest"] for row in rows)
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low / 2.5 <= tick <= high * 2.5]
    return ticks, [f"{tick:g}x" for tick in ticks]
