"""The map of chains as a picture: a panel for each load of the server, a cell for each hub and round trip."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lab.testbed.planner.hierarchy_map import HUBS, ROUND_TRIPS_MS, HierarchyPoint
from lab.testbed.planner.hierarchy_plan import HierarchyPlan
from lab.testbed.planner.hierarchy_site import CLOUD, DEVICE, HUB
from lab.testbed.planner.picture import INK, write_words

# Places from the target down -> fill and name. The fills stay apart in grey and to colour-blind eyes.
LOOKS = {
    (CLOUD,): ("#d9d9d9", "the server decodes"),
    (CLOUD, CLOUD): ("#f0b44c", "draft beside the target"),
    (CLOUD, DEVICE): ("#4fb39a", "device drafts for the server"),
    (CLOUD, HUB): ("#7cc0e8", "hub drafts for the server"),
    (CLOUD, HUB, DEVICE): ("#d98cb3", "device, hub and server"),
}
CELL = (0.95, 0.3)  # inches


def draw(points: Sequence[HierarchyPoint], path: Path, plan: HierarchyPlan) -> None:
    """Write the picture to `path` (.png or .svg)."""
    loads = list(dict.fromkeys(point.others for point in points))
    width = len(loads) * (len(HUBS) * CELL[0] + 0.7) + 0.6
    height = len(ROUND_TRIPS_MS) * CELL[1] + 2.5
    figure = Figure(figsize=(max(9.0, width), height), facecolor="white")
    for axes, others in zip(figure.subplots(1, len(loads), squeeze=False)[0], loads):
        _panel(axes, others, [point for point in points if point.others == others])
    config = plan.config
    title = (
        f"Fastest path to {config.target} on {plan.accelerator} ({config.context} KV positions each), for a "
        f"{config.draft} draft on {config.devices} and {config.hub_model} on hubs"
    )
    second = "those of the best hierarchy to those of the best path without one"
    source = f"{plan.site.drafts.source}.\nFirst number: tokens/s of a user. Second: {second}"
    write_words(figure, height, title, LOOKS.values(), source)
    figure.savefig(path, dpi=100)


def _panel(axes: Axes, others: int, points: Sequence[HierarchyPoint]) -> None:
    for point in points:
        _cell(axes, point)
    axes.set_xlim(0, len(HUBS))
    axes.set_ylim(len(ROUND_TRIPS_MS), 0)
    axes.set_xticks([column + 0.5 for column in range(len(HUBS))], HUBS)
    axes.set_yticks(
        [row + 0.5 for row in range(len(ROUND_TRIPS_MS))], [f"{ms:g} ms" for ms in ROUND_TRIPS_MS]
    )
    axes.tick_params(length=0, labelsize=9, colors=INK)
    load = f"steps shared with {others} other sessions" if others else "one user alone at the server"
    axes.set_title(load, fontsize=10, loc="left", color=INK)


def _cell(axes: Axes, point: HierarchyPoint) -> None:
    """A box in the colour of the fastest path, with its tokens/s and the gain of a hierarchy."""
    x, y = HUBS.index(point.hub), ROUND_TRIPS_MS.index(point.rtt_ms)
    fill, _ = LOOKS[tuple(place for _, place in point.path)]
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white", linewidth=0.8))
    words = f"{point.rate:.3g}  {point.gain:.2f}" if point.gain else f"{point.rate:.3g}"
    strong = "bold" if point.gain > 1 else "normal"
    axes.text(x + 0.5, y + 0.52, words, fontsize=8.5, weight=strong, ha="center", va="center", color=INK)
