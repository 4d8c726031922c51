"""What loose rules bring and cost, as a picture: tokens a round against right answers, a line for each kind of rule.

    python -m lab.benchmarks.quality_plot docs/quality/tiny.json [...]

Draws a file of `opensled quality --out FOLDER` (quality.json) beside it, as SVG. Each point is a rule with its options;
bars are the paired 95 % bootstrap intervals of the difference to the baseline.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from lab.benchmarks.picture import write_picture

MARGIN = -2.0  # points: above it, by the lower end of its bar, a rule is not inferior
# Where the names of a kind's points stand in turn, relative to them in points, and which end of a name is there:
# neighbours would hide each other.
BESIDE = ((7, 7),), "left"
PLACES = {"fly": (((-7, 7), (-7, -14)), "right")}  # of other kinds: BESIDE


class Point(NamedTuple):
    """One rule, over all kinds of questions."""

    label: str  # the option that is swept
    gain: float  # tokens a round over those of the baseline
    difference: tuple[float, float, float]  # points: mean, low, high


def main(words: Sequence[str]) -> int:
    for name in words:
        document = json.loads(Path(name).read_text("utf-8"))
        write_picture(partial(plot, document), Path(name).with_suffix(".svg"))
    return 0


def plot(document: Mapping[str, Any]) -> Figure:
    """`document`: see the module."""
    figure = Figure(figsize=(8, 4.6))
    axes = figure.subplots()
    for kind, points in sweeps(document).items():
        places, end = PLACES.get(kind.partition(",")[0], BESIDE)
        lows = [each.difference[0] - each.difference[1] for each in points]
        highs = [each.difference[2] - each.difference[0] for each in points]
        means = [each.difference[0] for each in points]
        gains = [each.gain for each in points]
        drawn = axes.errorbar(gains, means, yerr=(lows, highs), marker="o", capsize=3, label=kind)
        for place, each in zip(cycle(places), points):
            axes.annotate(
                each.label,
                (each.gain, each.difference[0]),
                place,
                ha=end,
                textcoords="offset points",
                fontsize=8,
                color=drawn.lines[0].get_color(),
            )
    axes.margins(x=0.12)  # room for the names
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.axhline(MARGIN, color="#888888", linewidth=0.8, linestyle="--")
    axes.set_xlabel("tokens a round over those of match, same drafts and lengths")
    axes.set_ylabel("right answers, points over match")
    settings = document["settings"]
    drafts = settings["draft_model"] or "its usual draft"
    axes.set_title(
        f"{settings['model']}, drafts of {drafts}: speed against right answers (real)", loc="left", pad=16
    )
    axes.legend(frameon=False, loc="lower center")
    return figure


def sweeps(document: Mapping[str, Any]) -> dict[str, list[Point]]:
    """By kind of rule, in the order of what it gains."""
    rules, baseline = document["rules"], document["rules"][document["baseline"]][-1]
    found: dict[str, list[Point]] = {}
    for name, rows in rules.items():
        if name == document["baseline"]:
            continue
        row = rows[-1]
        kind, label = _swept(name)
        interval = row["compared"]["difference"]
        points = (100 * interval["mean"], 100 * interval["low"], 100 * interval["high"])
        gain = row["tokens_per_round"] / baseline["tokens_per_round"]
        found.setdefault(kind, []).append(Point(label, gain, points))
    return {kind: sorted(points, key=lambda each: each.gain) for kind, points in found.items()}


def _swept(name: str) -> tuple[str, str]:
    """The kind of a rule, and the option that tells it from others of that kind."""
    rule, _, options = name.partition(":")
    values = dict(word.partition("=")[::2] for word in options.split(","))
    if rule == "fly":
        entropy = "top-3 entropy" if values["entropy"] == "top3" else "normalised entropy"
        return f"fly, window {values['window']}, {entropy}", f"θ={values['theta']}"
    return rule, f"σ={float(values['sigma']):.2g}" if "sigma" in values else options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
