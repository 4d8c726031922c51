"""The summary at the head of the page: every way to serve the same users in one table, OpenSLED beside the others."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.testbed.report import cell_figures as cells
from lab.testbed.report.cell_figures import OURS, PLAIN
from lab.testbed.report.grid_maps import TITLES
from lab.testbed.report.grid_verdict import ratio
from lab.testbed.report.html import Html, Section, badge, is_behind, loss, paragraph, table, text, times
from lab.testbed.report.results import Result, Results

OTHERS = ("server-sd", "sled-static", "sled-continuous")
HEADLINES = (
    "real_prompts",
    "peer",
)  # bench Figures of the whole system, against what users would run instead


def section(results: Results) -> Section | None:
    """None where nothing was measured end to end."""
    body = "".join(_parts(results))
    return Section("summary", "Summary: what OpenSLED does beside the others", body) if body else None


def _parts(results: Results) -> Iterator[str]:
    rows = list(_rows(results))
    if rows:
        yield paragraph(
            "Everything over centralized serving, in which the server decodes alone: 1.00x is the same, 2.00x twice as "
            "much. Cells: tokens/s of all users. Grid: users held at their pace, the median over all places; in "
            "brackets OpenSLED's lowest and highest. ▼ without colour: OpenSLED is behind, but the 95 % intervals of "
            "the few repeats overlap, or it is a median.",
            kind="note",
        )
        head = ["where", "label", *OTHERS, "OpenSLED", "over the best other"]
        yield table(head, rows, words=(0, 1))
    real = [row for result in _headlines(results) for row in _real(result)]
    if real:
        yield "<h3>On real models</h3>" + table(
            ["figure", "label", "against", "OpenSLED over it"], real, words=(0, 1, 2)
        )


def _rows(results: Results) -> Iterator[list[object]]:
    if regimes := results.named.get("regimes"):
        for cell in regimes.content["cells"]:
            yield [cell["id"], badge(regimes.label), *_cell(cell)]
    for name, title in TITLES.items():
        if grid := results.named.get(name):
            yield [title, badge(grid.label), *_grid(grid.content["points"])]


def _cell(cell: Mapping[str, Any]) -> list[object]:
    found = {name: cells.ratio(cell, "output_throughput", name) for name in (*OTHERS, OURS)}
    ours = found[OURS]
    best = max([1.0, *(value for name in OTHERS if (value := found[name]) is not None)])
    shown = [_times(found[name]) for name in (*OTHERS, OURS)]
    clear = any(each.clear and each.metric.key == "output_throughput" for each in cells.losses(cell))
    return [*shown, "–" if ours is None else _share(ours / best, clear)]


def _grid(points: Sequence[Mapping[str, Any]]) -> list[object]:
    found = {
        name: [value for point in points if (value := ratio(point, name)) is not None]
        for name in (*OTHERS, OURS)
    }
    shown = [_times(statistics.median(found[name]) if found[name] else None) for name in OTHERS]
    shares = [value for point in points if (value := _over_best(point)) is not None]
    share = _share(statistics.median(shares), False) if shares else "–"
    return [*shown, _spread(found[OURS]), share]


def _over_best(point: Mapping[str, Any]) -> float | None:
    held = point["capacity"]
    best = max((held[name] for name in (PLAIN, *OTHERS) if name in held), default=0)
    return held[OURS] / best if OURS in held and best else None


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def _share(value: float, clear: bool) -> str | Html:
    if not is_behind(value):
        return _times(value)
    return loss(_times(value)) if clear else f"▼ {_times(value)}"


def _headlines(results: Results) -> list[Result]:
    by_name = {result.path.stem: result for result in (*results.components, *results.named.values())}
    return [by_name[name] for name in HEADLINES if name in by_name]


def _real(result: Result) -> Iterator[list[object]]:
    """The ratios of OpenSLED as it is by default: those that have a bar, or all where none has one."""
    ratios = result.content["ratios"]
    judged = [each for each in ratios if each.get("required") is not None] or ratios
    for each in judged:
        name = Html(f"{text(result.title)}: {text(each['name'])}")
        yield [name, badge(result.label), each["against"], times(each["ratio"])]
