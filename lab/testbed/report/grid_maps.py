"""The simulated grid: users held by each baseline over regimes, links, devices and paces."""

import statistics
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from lab.testbed.planner.task_acceptance import TASKS
from lab.testbed.recordings import PAIRS
from lab.testbed.report.cell_figures import OTHER_TEXT, OURS, PLAIN
from lab.testbed.report.grid_verdict import ratio, told, verdict
from lab.testbed.report.html import Html, Section, bullets, folded, loss, paragraph, plot, table, text
from lab.testbed.report.plots import THEIRS
from lab.testbed.report.plots_maps import HeatMap, Tile, heat_maps
from lab.testbed.report.results import Result

Point = Mapping[str, Any]
TIE = 0.01  # capacities are found to within 1 %, so a ratio nearer to 1 is none
TITLES = {
    "grid": "The whole grid",
    **{f"grid-{name}": f"The short grid, drafts of {pair.words}" for name, pair in PAIRS.items()},
    **{
        f"grid-{name}": f"The short grid, {task.rate:.0%} of the drafts right" for name, task in TASKS.items()
    },
}
SLED_CLAIM = 2.8  # capacity over centralized (arXiv 2506.09397)


def section(result: Result) -> Section:
    """Heat maps of the whole grid, or of a short one: a picture for each regime, a panel for each pace."""
    name = result.path.stem
    axes, points = result.content["axes"], result.content["points"]
    note = paragraph(
        "Users held, as a ratio to centralized: 1.5 means half as many again. Rows are links, columns devices. "
        f"▼ and hatched: OpenSLED is below centralized by more than the {TIE:.0%} to which capacities are found; grey: "
        f"another baseline is. {OURS} is shown open, the other baselines folded.",
        kind="note",
    )
    others = [name for name in axes["baselines"] if name not in (OURS, PLAIN, OTHER_TEXT)]
    body = (
        _verdict(points) + _summary(points, [OURS, *others]) + _law(result) + _maps(name, OURS, axes, points)
    )
    body += "".join(folded(f"the same for {other}", _maps(name, other, axes, points)) for other in others)
    return Section(name, f"{TITLES[name]}: where drafting at the edge pays", note + body)


def below_plain(found: float) -> bool:
    """Whether a ratio to centralized is a loss, and no tie."""
    return found < 1 - TIE


def _verdict(points: list[Point]) -> str:
    """Whether OpenSLED is ever worse than the best of the others; nothing where it was not measured."""
    found = verdict(points)
    if not found.shares:
        return ""
    first, *rest = told(found).splitlines()
    return paragraph(text(first)) + (folded(f"{len(rest)} more lines", bullets(rest)) if rest else "")


def _summary(points: Iterable[Point], names: Iterable[str]) -> Html:
    by_regime: dict[str, list[Point]] = {}
    for point in points:
        by_regime.setdefault(point["regime"], []).append(point)
    rows = [[regime, name, *_spread(found, name)] for regime, found in by_regime.items() for name in names]
    ours = ["points below centralized", f"points at {SLED_CLAIM}x or more (SLED's claim)"]
    return table(["regime", "baseline", "lowest", "median", "highest", *ours], rows, words=(0, 1))


def _spread(points: list[Point], name: str) -> list[str | Html]:
    found = [value for point in points if (value := ratio(point, name)) is not None]
    if not found:
        return ["–"] * 5
    below, high = sum(map(below_plain, found)), sum(value >= SLED_CLAIM for value in found)
    count = f"{below} of {len(found)}"
    numbers = [f"{value:.2f}x" for value in (min(found), statistics.median(found), max(found))]
    return [*numbers, loss(count) if below and name == OURS else count, f"{high} of {len(found)}"]


def _law(result: Result) -> str:
    """How far the planner's formula is from the simulator, where the file says so."""
    errors = result.content.get("law_error")
    if not errors:
        return ""
    rows = [
        [name, each["points"], f"{each['median']:.0%}", f"{each['within_15_percent']:.0%}"]
        for name, each in errors.items()
    ]
    told = table(["baseline", "points", "median error", "within 15 %"], rows)
    return folded("the planner's formula beside the simulator", told)


def _maps(grid: str, name: str, axes: Mapping[str, Any], points: Iterable[Point]) -> str:
    points = list(points)
    drawn = []
    for number, regime in enumerate(axes["regimes"]):
        paces = sorted({point["pace"] for point in points if point["regime"] == regime})
        maps = [_map(name, pace, axes, points, regime) for pace in paces]
        alt = f"{name}, {regime}: users held as a ratio to centralized, by link and device"
        if maps:
            picture = heat_maps(f"{grid}-{name}-{number}", alt, maps, across=min(4, len(maps)))
            drawn.append(f"<h3>{text(regime)}: {text(name)}</h3>{plot(picture)}")
    return "".join(drawn)


def _map(name: str, pace: float, axes: Mapping[str, Any], points: list[Point], regime: str) -> HeatMap:
    tiles = {
        (point["link"], point["device"]): _tile(point, name)
        for point in points
        if point["regime"] == regime and point["pace"] == pace and name in point["capacity"]
    }
    return HeatMap(f"at {pace:g} tokens/s", axes["links"], axes["devices"], tiles)


def _tile(point: Point, name: str) -> Tile:
    found = ratio(point, name)
    if found is None:
        return Tile(None, "new" if point["capacity"][name] else "0")
    full = point["capacity"][name] >= point.get("kv_fits", inf)
    words, below = f"{found:.2f}{' K' if full else ''}", below_plain(found)
    return Tile(found, words, below and name == OURS, THEIRS if below else "")
