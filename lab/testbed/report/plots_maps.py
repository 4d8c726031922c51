"""Small heat maps side by side, every tile with its number; and one value against another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lab.testbed.report.plots import ACCENT, INK, OURS, styled, svg

Pair = tuple[float, float, bool]  # the same quantity, emulated and simulated, and whether it is OpenSLED's
WIDEST = 11.5  # inches that fit the page
STRONGEST = 3.0  # ratios from here on, or below its inverse, have the full colour
PALEST, DEEPEST = 0.08, 0.62  # opacity, so that the page's text colour stays legible on both


@dataclass(frozen=True)
class Tile:
    """A ratio to plain serving, drawn as colour, and the words that stand on it."""

    ratio: float | None  # None = nothing to compare with
    words: str
    loses: bool = False  # drawn with a hatch and a sign as well
    colour: str = ""  # of a tile that does not lose; "" = that of a gain


@dataclass(frozen=True)
class HeatMap:
    """One panel; tiles that are not there stay empty."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    tiles: Mapping[tuple[str, str], Tile]


def heat_maps(name: str, alt: str, maps: Sequence[HeatMap], *, across: int = 3) -> str:
    """Panels with the same rows and columns, at most `across` of them in a line."""
    rows, columns = maps[0].rows, maps[0].columns
    panel_width = 0.3 + 0.62 * len(columns)
    across = max(1, min(across, int(WIDEST / panel_width)))
    lines = -(-len(maps) // across)
    with styled(name):
        width, height = across * panel_width, lines * (0.75 + 0.34 * len(rows))
        figure = Figure(figsize=(width, height))
        axes = list(figure.subplots(lines, across, sharex=True, sharey=True, squeeze=False).flat)
        for axis, panel in zip(axes, maps):
            _panel(axis, panel)
        for axis in axes[len(maps) :]:
            axis.set_visible(False)
        for place, axis in enumerate(axes[: len(maps)]):  # the lowest panel of each column names the devices
            axis.tick_params(labelbottom=place + across >= len(maps))
        figure.subplots_adjust(wspace=0.06, hspace=0.22)
        return svg(figure, name, alt)


def _panel(axis: Any, panel: HeatMap) -> None:
    for (row, column), tile in panel.tiles.items():
        _tile(axis, panel.columns.index(column), panel.rows.index(row), tile)
    axis.set_xlim(0, len(panel.columns))
    axis.set_ylim(len(panel.rows), 0)
    axis.set_xticks(
        [place + 0.5 for place in range(len(panel.columns))], panel.columns, rotation=35, ha="right"
    )
    axis.set_yticks([place + 0.5 for place in range(len(panel.rows))], panel.rows)
    axis.set_title(panel.title, fontsize=9.5, loc="left")
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _tile(axis: Any, x: int, y: int, tile: Tile) -> None:
    colour, strength = _shade(tile)
    box = (x + 0.03, y + 0.04)
    axis.add_patch(Rectangle(box, 0.94, 0.92, facecolor=colour, alpha=strength, edgecolor="none"))
    if tile.loses:
        edge: dict[str, Any] = {"edgecolor": ACCENT, "hatch": "//////", "linewidth": 0.8, "alpha": 0.55}
        axis.add_patch(Rectangle(box, 0.94, 0.92, facecolor="none", **edge))
    words = f"▼{tile.words}" if tile.loses else tile.words
    axis.text(x + 0.5, y + 0.52, words, ha="center", va="center", fontsize=8.5)


def _shade(tile: Tile) -> tuple[str, float]:
    """Colour and opacity."""
    if tile.ratio is None:
        return tile.colour or INK, PALEST
    far = abs(log2(tile.ratio)) / log2(STRONGEST) if tile.ratio > 0 else 1.0
    colour = ACCENT if tile.loses else tile.colour or OURS
    return colour, PALEST + (DEEPEST - PALEST) * min(1.0, far)


def agreement(name: str, alt: str, panels: Mapping[str, Sequence[Pair]], bound: float) -> str:
    """Simulated over emulated on logarithmic axes; the band is +- `bound`."""
    with styled(name):
        figure = Figure(figsize=(4.1 * len(panels), 3.6))
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (title, pairs) in zip(axes, panels.items()):
            _pairs(axis, pairs, bound)
            axis.set_title(title, fontsize=9.5, loc="left")
            axis.set_xlabel("emulated")
        axes[0].set_ylabel("simulated")
        figure.subplots_adjust(wspace=0.25)
        return svg(figure, name, alt)


def _pairs(axis: Any, pairs: Sequence[Pair], bound: float) -> None:
    values = [value for emulated, simulated, _ in pairs for value in (emulated, simulated)]
    low, high = min(values) / 1.4, max(values) * 1.4
    ends = [low, high]
    ticks = [tick * 10**power for power in range(6) for tick in (1, 2, 5) if low <= tick * 10**power <= high]
    for scale, place in ((axis.set_xscale, axis.set_xticks), (axis.set_yscale, axis.set_yticks)):
        scale("log")
        place(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    lowest, highest = ([end * far for end in ends] for far in (1 - bound, 1 + bound))
    axis.fill_between(ends, lowest, highest, color=INK, alpha=0.12, lw=0)
    axis.plot(ends, ends, color=INK, lw=0.8)
    for emulated, simulated, ours in pairs:
        sign = "s" if abs(simulated / emulated - 1) > bound else "o"
        axis.plot([emulated], [simulated], sign, ms=6, mec=OURS if ours else INK, mfc="none", mew=1.3)
