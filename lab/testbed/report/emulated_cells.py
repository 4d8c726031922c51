"""The emulated cells: every baseline of each as bars, and as a table."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lab.testbed.report import cell_figures as cells
from lab.testbed.report.cell_figures import LIVE, OURS, Cell, CellShare, SummaryMetric, shares
from lab.testbed.report.html import Html, Section, folded, loss, paragraph, plot, table, text
from lab.testbed.report.plots_bars import Bar, Panel, bars
from lab.testbed.report.results import Result

TABLE_KEYS = (
    *((metric.key, metric.title) for metric in (*cells.METRICS, cells.FIRST_TOKEN)),
    ("p99_ttft_ms", "p99 time to first token, ms"),
    ("p99_e2el_ms", "p99 end to end, ms"),
    ("acceptance_rate", "acceptance rate"),
    ("wasted_share", "wasted share of drafts"),
    ("mean_batch", "sessions per step"),
    ("busy_share", "server busy"),
    ("bytes_up_per_token", "bytes up per token"),
    ("bytes_down_per_token", "bytes down per token"),
    ("served", "users served at their pace"),
    ("failed", "failed requests"),
    ("released_unverified", "tokens a silent release would show unverified"),
    ("released_wrong", "of those, wrong ones"),
)


def section(result: Result) -> Section:
    """One plot and one table for each cell of regimes.json."""
    key: str = paragraph(
        f"Bars: mean of the repeats with recorded drafts, whisker: 95 % confidence interval, blue: {OURS}, the product "
        "as it is by default. ◇: a run with the real drafters. ×: the simulator. Dashed: the pace that users were "
        "promised. ▼ and hatched: OpenSLED is behind another way to serve the same text. device-only writes the draft "
        "model's own text, which is a worse one, so it counts as no rival.",
        kind="note",
    )
    key += _accuracy(result.content.get("facts", {}).get("accuracy", {}))
    told = [_cell(number, cell) for number, cell in enumerate(result.content["cells"])]
    return Section("cells", "Cells, end to end", key + _world(result) + "".join(told))


def _world(result: Result) -> Html:
    dilation = result.content.get("dilation")
    return paragraph(
        f"One emulated second took {dilation:g} real ones. " if cells.is_number(dilation) else "",
        "Sessions hold their context already (earlier turns, or a shared prefix), so only the request's own prompt "
        "is prefilled, in every baseline alike.",
        kind="note",
    )


def _accuracy(right: Mapping[str, Any]) -> Html:
    """What the draft alone gives up."""
    if not right.get("items"):
        return Html()
    return paragraph(
        f"Right answers on {right['items']} items that have one: target {right['target']:.0%}, "
        f"device-only {right['draft_alone']:.0%}."
    )


def _cell(number: int, cell: Cell) -> str:
    head = f"{cell['id']}: {cell['users']} users who want {cells.short(cell['pace'])} tokens/s"
    if lengths := cell.get("draft_lengths"):
        head += f"; draft length: {', '.join(f'{name} {length}' for name, length in lengths.items())}"
    for name, told in cell.get("triggers", {}).items():
        head += f"; {name}: R1 {told['product']:g}, R2 {told['newest']:g}"
    lost = cells.losses(cell)
    panels = [_panel(cell, metric, [each.metric.key for each in lost]) for metric in cells.METRICS]
    shown = [panel for panel in panels if any(bar.value for bar in panel.bars)]
    drawn = plot(bars(f"cell{number}", f"{head}. Same figures in the table below.", shown)) if shown else ""
    return f"<h3>{text(head)}</h3>{_verdict(cell)}{drawn}{folded('all figures of this cell', _table(cell))}"


def _panel(cell: Cell, metric: SummaryMetric, lost: Sequence[str]) -> Panel:
    return Panel(
        metric.title,
        [_bar(cell, name, metric.key) for name in cells.baselines(cell)],
        wanted=float(cell["pace"]) if metric.key == "pace_mean" else None,
        marks=(OURS,) if metric.key in lost else (),
    )


def _bar(cell: Cell, name: str, key: str) -> Bar:
    live = cells.repeats(cell, name, key, live=True)
    value = cells.measured(cell, name, key)
    if value and not value.mean:  # nothing to count: a baseline without rounds
        return Bar(name, None)
    return Bar(name, value, live, cells.simulated(cell, name, key), name == OURS)


def _verdict(cell: Cell) -> Html:
    """One sentence on throughput, the figure SLED is known for."""
    gain = cells.ratio(cell, "output_throughput")
    words: list[Any] = [] if gain is None else [f"Throughput of OpenSLED: {gain:.2f}x of centralized."]
    words += [_share(each) for each in shares([cell])]
    words += _live(cell)
    if cell.get("void"):
        words.append(
            f"{len(cell['void'])} runs were void: the machine could not keep up with the emulated time."
        )
    for each in cells.losses(cell):
        where = f"{each.metric.title.split(',')[0]}: behind {each.rival}"
        words.append(loss(f"{where}.") if each.clear else f"▼ {where}, but the intervals overlap.")
    return paragraph(*words)


def _share(found: CellShare) -> str | Html:
    """OpenSLED beside the best of those that write the same text on the same machines."""
    mean, low, high = found.share
    told = f"{found.figure.capitalize()}: {mean:.2f}x of {found.rival} (95 %: {low:.2f} to {high:.2f})."
    return told if found.kept else loss(told)


def _live(cell: Cell) -> list[str]:
    """How far runs with the real drafters are from those with recorded drafts."""
    replay, live = (cells.repeats(cell, LIVE, "output_throughput", live=real) for real in (False, True))
    if not replay or not live:
        return []
    return [f"{LIVE} with the real drafters: {fmean(live) / fmean(replay) - 1:+.1%} throughput."]


def _table(cell: Cell) -> Html:
    names = cells.baselines(cell)
    rows = [
        [title, *(cells.spread(cells.measured(cell, name, key)) for name in names)]
        for key, title in TABLE_KEYS
        if any(cells.measured(cell, name, key) for name in names)
    ]
    return table(["mean ± half of the 95 % interval", *names], rows)
