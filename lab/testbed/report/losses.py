"""Where we lose: every figure in which something else is better than OpenSLED, in one place."""

from collections.abc import Iterator

from lab.testbed.baselines import RIVALS
from lab.testbed.report import cell_figures as cells
from lab.testbed.report.cell_capacity import best_rival, capacities
from lab.testbed.report.cell_figures import OURS, Loss
from lab.testbed.report.grid_maps import TITLES, below_plain
from lab.testbed.report.grid_verdict import Share, verdict
from lab.testbed.report.html import (
    Html,
    Section,
    bullets,
    folded,
    is_behind,
    loss,
    paragraph,
    prose,
    table,
    text,
)
from lab.testbed.report.results import Result, Results


def section(results: Results) -> Section:
    """Emulated cells, capacities, the grid, the peer, and components."""
    body = "".join(_parts(results)) or paragraph(
        "Nothing in these results. Look at what was not measured, too."
    )
    return Section("losses", "Where we lose", body)


def _parts(results: Results) -> Iterator[str]:
    if regimes := results.named.get("regimes"):
        yield from _cells(regimes)
        yield from _capacities(regimes)
    for name, title in TITLES.items():
        if grid := results.named.get(name):
            yield from _grid(grid, title)
    figures = [*results.components, *([results.named["peer"]] if "peer" in results.named else [])]
    if figures:
        yield "<h3>Components and peers</h3>" + bullets([_figure(each) for each in figures])


def _cells(result: Result) -> Iterator[str]:
    lost = [each for cell in result.content["cells"] for each in cells.losses(cell)]
    if lost:
        head = ["cell", "figure", "OpenSLED", "best rival", "its figure", "difference"]
        yield "<h3>Emulated cells</h3>" + table(head, [_row(each) for each in lost], words=(0, 1, 3))


def _row(each: Loss) -> list[object]:
    far = abs(each.ours.mean / each.theirs.mean - 1) if each.theirs.mean else 1.0
    difference = f"{far:.0%} worse"
    return [
        each.cell,
        each.metric.title,
        cells.spread(each.ours),
        each.rival,
        cells.spread(each.theirs),
        loss(difference) if each.clear else f"▼ {difference}, but the intervals overlap",
    ]


def _capacities(result: Result) -> Iterator[str]:
    told = [(str(cell["id"]), capacities(cell)) for cell in result.content["cells"]]
    rows = [
        [cell, loss(cells.short(found[OURS])), rival, cells.short(found[rival])]
        for cell, found in told
        if (rival := best_rival(found))
    ]
    if rows:
        yield "<h3>Capacity of the cells</h3>" + table(
            ["cell", "OpenSLED", "best rival", "it holds"], rows, words=(0, 2)
        )


def _grid(result: Result, title: str) -> Iterator[str]:
    """Against the best of the others at each place, and not only against centralized serving."""
    compared = verdict(result.content["points"]).shares
    lost = sorted((each for each in compared if below_plain(each.share)), key=lambda each: each.share)
    if lost:
        head = ["regime", "device", "link", "pace", "figure", "best rival", "of the rival"]
        rows = [_place(each) for each in lost]
        shown = table(head, rows[:8], words=(0, 1, 2, 4, 5))
        rest = folded(f"all {len(rows)}", table(head, rows, words=(0, 1, 2, 4, 5))) if len(rows) > 8 else ""
        words = f"{len(lost)} of {len(compared)} comparisons are lost to the best of {', '.join(RIVALS)}; the worst:"
        yield f"<h3>{text(title)}</h3>{paragraph(words)}{shown}{rest}"


def _place(lost: Share) -> list[object]:
    place = [lost.point[key] for key in ("regime", "device", "link", "pace")]
    return [*place, lost.respect, lost.rival, loss(f"{lost.share:.2f}x")]


def _figure(result: Result) -> Html:
    below = [
        f"{each['name']} ({each['ratio']:.2f}x)"
        for each in result.content["ratios"]
        if is_behind(each["ratio"])
    ]
    signs = [loss(each) for each in below]
    told = f"<strong>{text(result.title)}.</strong> {prose(result.content.get('loses', ''))}"
    return Html(f"{told} {', '.join(signs)}".rstrip())
