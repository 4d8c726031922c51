"""Hub places as a picture: a panel for each quantity, a line of dots for each hub and kind of drafts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lab.benchmarks.hub_places_view import QUANTITIES
from lab.benchmarks.picture import ACCENT, DARK, OTHER, OURS, write_picture


def write_plot(document: Mapping[str, Any], path: Path) -> None:
    """A dot is a place."""
    write_picture(lambda: plot(document), path)


def plot(document: Mapping[str, Any]) -> Figure:
    places = document["places"]
    hubs, kinds = (list(dict.fromkeys(place[key] for place in places)) for key in ("hub", "drafts"))
    figure = Figure(figsize=(11, 0.9 + 0.45 * len(hubs)))
    panels = figure.subplots(1, len(QUANTITIES), sharey=True)
    for axis, quantity in zip(panels, QUANTITIES):
        for number, (kind, colour) in enumerate(zip(kinds, (OURS, OTHER, ACCENT))):
            here = [place for place in places if place["drafts"] == kind]
            heights = [hubs.index(place["hub"]) + 0.25 * (number - 1) for place in here]
            found = [place["ratios"][quantity] for place in here]
            axis.plot(found, heights, "o", ms=3.5, alpha=0.6, color=colour, label=kind)
        axis.axvline(1, color=DARK, lw=0.8)
        axis.set_xlabel(f"{quantity}, over no drafts")
    panels[0].set_yticks(range(len(hubs)), hubs)
    panels[0].set_ylim(len(hubs) - 0.5, -0.5)
    panels[-1].legend(frameon=False)
    return figure
