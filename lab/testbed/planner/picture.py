"""The map as a picture: a panel for each target and context, a cell for each link, device and pace."""

from collections.abc import Iterable, Sequence
from math import isinf
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lab.testbed.fleet import Server
from lab.testbed.planner.mode_map import DEVICES, LINKS, PACES, Point

# Mode -> letter, fill and name. The fills stay apart in grey and to colour-blind eyes; dark text is legible on all.
LOOKS = {
    "centralized": ("C", "#d9d9d9", "the server decodes"),
    "server-sd": ("S", "#f0b44c", "draft beside the server"),
    "sled-static": ("B", "#7cc0e8", "devices draft, fixed batches"),
    "sled-continuous": ("D", "#4fb39a", "devices draft, continuous batches"),
    "": ("", "#ffffff", "no mode is that fast"),
}
INK = "#202020"
CELL = (0.41, 0.26)  # inches


def draw(points: Sequence[Point], path: Path, source: str) -> None:
    """Write the picture to `path` (.png or .svg); `source` says where acceptance is from."""
    servers = list(dict.fromkeys(point.server for point in points))
    columns = min(2, len(servers))
    lines = -(-len(servers) // columns)
    size = (columns * (len(DEVICES) * len(PACES) * CELL[0] + 1.3), lines * (len(LINKS) * CELL[1] + 1.1) + 1.5)
    figure = Figure(figsize=size, facecolor="white")
    axes = figure.subplots(lines, columns, squeeze=False)
    for number, server in enumerate(servers):
        _panel(axes[number // columns][number % columns], server, points)
    for number in range(len(servers), lines * columns):
        axes[number // columns][number % columns].set_axis_off()
    looks = [(fill, f"{letter}  {name}" if letter else name) for letter, fill, name in LOOKS.values()]
    title = "Which mode holds the most users, and how many times those of the server's own decoding"
    write_words(figure, size[1], title, looks, f"{source}. ∞: the server's own decoding serves no user")
    figure.savefig(path, dpi=100)


def write_words(
    figure: Figure, height: float, title: str, looks: Iterable[tuple[str, str]], source: str
) -> None:
    """Title, legend (fills and their names), and what the numbers are; `source`: of acceptance."""
    figure.suptitle(title, y=1 - 0.12 / height, va="top", color=INK, fontsize=11)
    patches = [Patch(facecolor=fill, edgecolor=INK, label=name) for fill, name in looks]
    place = (0.5, 1 - 0.4 / height)
    figure.legend(
        handles=patches, loc="upper center", ncols=5, frameon=False, bbox_to_anchor=place, fontsize=9
    )
    note = f"Derived from hardware profiles by the planner's law, not measured. Acceptance: {source}."
    figure.text(0.5, 0.12 / height, note, ha="center", color=INK, fontsize=8.5)
    top, bottom = 1 - 1.15 / height, 1.15 / height
    figure.subplots_adjust(left=0.07, right=0.99, top=top, bottom=bottom, hspace=0.45, wspace=0.16)


def _panel(axes: Axes, server: Server, points: Sequence[Point]) -> None:
    width = len(DEVICES) * len(PACES)
    for point in points:
        if point.server == server:
            _cell(axes, point)
    axes.set_xlim(0, width)
    axes.set_ylim(len(LINKS), 0)
    axes.set_yticks([row + 0.5 for row in range(len(LINKS))], LINKS)
    axes.set_xticks([column + 0.5 for column in range(width)], [f"{pace:g}" for pace in PACES] * len(DEVICES))
    axes.tick_params(length=0, labelsize=9, colors=INK)
    for number, device in enumerate(DEVICES):
        middle = (number + 0.5) * len(PACES)
        axes.text(
            middle, len(LINKS) + 1.35, device, ha="center", va="center", fontsize=9, weight="bold", color=INK
        )
        axes.axvline(number * len(PACES), color=INK, linewidth=1.5)
    axes.text(-0.15, len(LINKS) + 0.5, "tokens/s", ha="right", va="center", fontsize=8, color=INK)
    title = f"{server.target}, {server.weight_bits:g}-bit weights, on {server.accelerator}"
    axes.set_title(f"{title}, {server.context // 1024}k context", fontsize=11, loc="left", color=INK)


def _cell(axes: Axes, point: Point) -> None:
    """A coloured box with the mode's letter, its draft length and the gain."""
    x = DEVICES.index(point.device) * len(PACES) + PACES.index(point.pace)
    y = LINKS.index(point.link)
    letter, fill, _ = LOOKS[point.mode]
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white", linewidth=0.8))
    if letter:
        strong = "bold" if point.gain >= 1.5 else "normal"
        words = f"{letter} {_gain(point)}".strip()
        axes.text(x + 0.5, y + 0.52, words, fontsize=8.5, weight=strong, ha="center", va="center", color=INK)


def _gain(point: Point) -> str:
    """Nothing for plain decoding itself; infinity where that serves no user."""
    if point.mode == "centralized":
        return ""
    return "∞" if isinf(point.gain) else f"{point.gain:.1f}" if point.gain < 9.95 else f"{point.gain:.0f}"
