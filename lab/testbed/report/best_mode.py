"""The planner's map: the best mode for each target, context, pace, device and link, and its gain."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from lab.testbed.report.cell_figures import is_number
from lab.testbed.report.html import Html, Section, folded, paragraph, plot, table, text
from lab.testbed.report.plots import OTHER, OURS
from lab.testbed.report.plots_maps import HeatMap, Tile, heat_maps
from lab.testbed.report.results import Result

Point = Mapping[str, Any]
SIGNS = {
    "centralized": "C",
    "server-sd": "S",
    "sled-static": "F",
    "sled-continuous": "E",
    "device-only": "D",
    "": "0",
}


def section(result: Result) -> Section:
    """One picture for each target and accelerator, one panel for each context and pace."""
    points = result.content["points"]
    note = paragraph(
        "The mode that holds the most users, by its letter, and its gain over centralized. A tile with C has no gain: "
        "there the right answer is not to draft.",
        kind="note",
    )
    drawn = [
        f"<h3>{text(target)} on {text(accelerator)}</h3>{plot(_picture(number, found))}"
        for number, ((target, accelerator), found) in enumerate(
            _groups(points, "target", "accelerator").items()
        )
    ]
    # Two pictures are open: many more would bury the rest of the page.
    rest = folded(f"{len(drawn) - 2} more targets and accelerators", "".join(drawn[2:])) if drawn[2:] else ""
    body = note + _count(points) + "".join(drawn[:2]) + rest
    return Section("map", "The map: which mode is best", body)


def _count(points: Iterable[Point]) -> Html:
    """How often which mode is the best, by target."""
    by_target = {
        target: Counter(_mode(point) for point in found)
        for (target,), found in _groups(points, "target").items()
    }
    modes = [mode for mode in SIGNS if any(count[mode] for count in by_target.values())]
    rows = [
        [target, *(f"{count[mode] / count.total():.0%}" for mode in modes)]
        for target, count in by_target.items()
    ]
    return table(["best mode, share of the map", *(mode or "none holds anyone" for mode in modes)], rows)


def _groups(points: Iterable[Point], *keys: str) -> dict[tuple[Any, ...], list[Point]]:
    groups: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        groups.setdefault(tuple(point[key] for key in keys), []).append(point)
    return groups


def _picture(number: int, points: list[Point]) -> str:
    devices = list(dict.fromkeys(point["device"] for point in points))
    links = list(dict.fromkeys(point["link"] for point in points))
    groups = sorted(_groups(points, "context", "pace").items())
    maps = [
        HeatMap(
            f"context {context:,}, {pace:g} tokens/s",
            links,
            devices,
            {(each["link"], each["device"]): _tile(each) for each in found},
        )
        for (context, pace), found in groups
    ]
    paces = len({pace for (_, pace), _ in groups})
    return heat_maps(
        f"map-{number}", "best mode and its gain, by link and device", maps, across=min(4, paces)
    )


def _mode(point: Point) -> str:
    return point["mode"] if point["users"] else ""


def _tile(point: Point) -> Tile:
    mode, gain = _mode(point), point["gain"]
    sign = SIGNS.get(mode, mode)
    if mode in ("", "centralized"):
        return Tile(None, sign)
    colour = OTHER if mode == "server-sd" else OURS
    return (
        Tile(gain, f"{sign} {gain:.1f}", False, colour)
        if is_number(gain)
        else Tile(None, f"{sign} new", False, colour)
    )
