"""head_curves.json as a picture: one panel for each target, one line for each head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.picture import DARK, write_picture
from opensled_testbed.report.plots import ACCENT, OTHER, OURS, THEIRS

COLOURS = (OURS, OTHER, ACCENT, THEIRS, DARK)  # of heads
WAYS = {"chain": "--", "tree": "-"}  # in which a draft is verified
Curves = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]


def write_plot(curves: Curves, path: Path) -> None:
    """Tokens a step by rows; 1 is plain decoding."""
    write_picture(lambda: plot(curves), path)


def plot(curves: Curves) -> Figure:
    figure = Figure(figsize=(5.2 * len(curves), 4.8), facecolor="white")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    heads = list(dict.fromkeys(_parts(name)[0] for lines in curves.values() for name in lines))
    for axis, (target, lines) in zip(axes, curves.items()):
        for name, points in lines.items():
            rows, found = zip(*points)
            head, way = _parts(name)
            style = {
                "color": COLOURS[heads.index(head)],
                "ls": WAYS[way],
                "marker": "o" if len(points) == 1 else "",
            }
            axis.plot([count / 1000 for count in rows], found, label=name, **style)
        axis.axhline(1, color=DARK, lw=0.8)
        axis.set_title(target, fontsize=9.5, loc="left")
        axis.set_xlabel("rows drafted from, thousands")
        axis.set_ylabel("tokens a step")
        axis.set_ylim(bottom=0.9)
    handles, labels = max((axis.get_legend_handles_labels() for axis in axes), key=lambda each: len(each[1]))
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.subplots_adjust(wspace=0.25, bottom=0.34)
    return figure


def _parts(name: str) -> tuple[str, str]:
    """Head and way."""
    head, _, way = name.rpartition(", ")
    return head, way
