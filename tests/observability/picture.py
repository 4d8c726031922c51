"""The dashboard's panels in its own layout, drawn by matplotlib from what Prometheus answered."""

from io import BytesIO
from itertools import pairwise
from math import nan

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

matplotlib.use("Agg")
COLUMNS, COLUMN, LINE = 24, 0.62, 0.26  # inches of a cell of Grafana's grid
DPI, COLOURS = 80, 256  # of the picture; as many colours as its palette has
LONGEST, LEGEND = 46, 72  # letters of a name beside its value; of a legend's line
TICKS = 5
GAP = 0.07  # inches around a panel
PAGE, BOX, EDGE, INK, FAINT = "#f4f5f5", "#ffffff", "#d9dbdf", "#24292e", "#6b7078"
# What Grafana calls its colours, in its light theme.
NAMED = {
    "text": INK, "green": "#56a64b", "blue": "#3274d9", "light-blue": "#8ab8ff", "orange": "#ff780a", "red": "#e02f44",
    "purple": "#a352cc", "gray": "#b8bcc4",
}  # fmt: skip
PALETTE = (
    "#56a64b",
    "#3274d9",
    "#ff780a",
    "#a352cc",
    "#e0b400",
    "#37872d",
    "#e02f44",
    "#1f60c4",
    "#8f3bb8",
    "#8ab8ff",
)


def draw(panels, answers, file):
    """Write the picture; `answers`: {panel id: [(target, series)]}."""
    height = max(panel.place[1] + panel.place[3] for panel in panels)
    figure = plt.figure(figsize=(COLUMNS * COLUMN, height * LINE), facecolor=PAGE)
    times = [
        at for each in answers.values() for _, found in each for series in found for at, _ in series.points
    ]
    span = (min(times), max(times))
    with plt.rc_context({"font.size": 8, "axes.edgecolor": EDGE, "text.color": INK}):
        for panel in panels:
            _panel(figure, panel, answers[panel.data["id"]], height, span)
    whole = BytesIO()
    figure.savefig(whole, dpi=DPI, facecolor=PAGE)
    plt.close(figure)
    Image.open(whole).convert("RGB").quantize(COLOURS).save(file, optimize=True)


def _panel(figure, panel, answers, height, span):
    x, y, w, h = panel.place
    left, bottom = x / COLUMNS, 1 - (y + h) / height
    gap_x, gap_y = GAP / (COLUMNS * COLUMN), GAP / (height * LINE)
    if panel.kind == "row":
        figure.text(left + gap_x, bottom + 0.2 / height, panel.title, fontsize=10, weight="bold")
        return
    box = (left + gap_x, bottom + gap_y, w / COLUMNS - 2 * gap_x, h / height - 2 * gap_y)
    figure.add_artist(
        plt.Rectangle(box[:2], *box[2:], facecolor=BOX, edgecolor=EDGE, linewidth=0.8, zorder=-1)
    )
    figure.text(
        box[0] + gap_x, box[1] + box[3] - 0.19 / (height * LINE), panel.title, fontsize=8.5, weight="bold"
    )
    {"timeseries": _timeseries, "stat": _stat, "bargauge": _bars}[panel.kind](
        figure, panel, answers, box, height, span
    )


def _axes(figure, box, height, left=0.45, right=0.12, bottom=0.52, top=0.3):
    """Axes within a panel; margins in inches."""
    width, tall = COLUMNS * COLUMN, height * LINE
    return figure.add_axes(
        (
            box[0] + left / width,
            box[1] + bottom / tall,
            box[2] - (left + right) / width,
            box[3] - (bottom + top) / tall,
        )
    )


def _named(answers):
    """(name, series) of every series with a number, in the order of the queries."""
    return [(target.name(each.labels), each) for target, found in answers for each in found if each.points]


def _timeseries(figure, panel, answers, box, height, span):
    named = _named(answers)
    changed = {name: panel.overrides(name) for name, _ in named}
    second = [name for name, _ in named if changed[name].get("custom.axisPlacement") == "right"]
    axes = _axes(figure, box, height, right=0.5 if second else 0.12)
    other = axes.twinx() if second else None
    _style(axes, panel.defaults["unit"])
    if second:
        _style(other, changed[second[0]]["unit"])
    if not named:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=FAINT)
        axes.axis("off")
        return
    colours = _colours([name for name, _ in named], changed)
    firsts = [(name, series) for name, series in named if name not in second]
    if panel.defaults["custom"]["stacking"]["mode"] == "normal":
        _stack(axes, firsts, colours)
    else:
        for name, series in firsts:
            axes.plot(*_line(series), color=colours[name], linewidth=1.3, label=name)
    for name, series in named:
        if name in second:
            other.plot(
                *_line(series),
                color=colours[name],
                linewidth=1.3,
                linestyle="--",
                label=f"{name} (right)",
            )
    _finish(axes, other, panel.defaults, span)


def _line(series):
    """Times and values, with a hole where samples are missing."""
    step = min(b[0] - a[0] for a, b in pairwise(series.points)) if len(series.points) > 1 else 0
    points = series.points[:1]
    for before, after in pairwise(series.points):
        points += [(after[0] - step, nan), after] if after[0] - before[0] > 2 * step else [after]
    return tuple(zip(*points))


def _colours(names, changed):
    free = iter(PALETTE * 4)
    fixed = {name: changed[name].get("color", {}).get("fixedColor") for name in names}
    return {name: NAMED[fixed[name]] if fixed[name] else next(free) for name in dict.fromkeys(names)}


def _stack(axes, named, colours):
    """Where a series has no number it counts as 0."""
    times = sorted({at for _, series in named for at, _ in series.points})
    rows = [[dict(series.points).get(at, 0.0) for at in times] for _, series in named]
    names = [name for name, _ in named]
    axes.stackplot(
        times, *rows, labels=names, colors=[colours[name] for name in names], alpha=0.75, linewidth=0
    )


def _style(axes, unit):
    axes.set_facecolor("none")
    axes.grid(axis="y", color="#e7e8ea", linewidth=0.6)
    axes.tick_params(labelsize=7, colors=FAINT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=unit == "bytes", min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, unit)))


def _finish(axes, other, defaults, span):
    """Scales and legend of a panel with lines."""
    for each in filter(None, (axes, other)):
        values = [value for line in each.lines for value in line.get_ydata() if value > 0]
        most = each.get_ylim()[1] if values or each.collections else 1
        each.set_ylim(0, defaults.get("max", most) if each is axes else most)
    axes.set_xlim(span)
    ticks = [span[0] + part * (span[1] - span[0]) / TICKS for part in range(TICKS + 1)]
    axes.set_xticks(ticks, [f"{at - span[0]:.0f} s" for at in ticks])
    handles, labels = axes.get_legend_handles_labels()
    if other:
        more = other.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    shown = dict(zip(labels, handles))
    columns = max(1, min(4, LEGEND // max(map(len, shown))))
    axes.legend(
        shown.values(), shown, loc="upper left", bbox_to_anchor=(-0.1, -0.13), ncols=columns, fontsize=7, frameon=False,
        handlelength=1, columnspacing=1, handletextpad=0.4, borderpad=0, borderaxespad=0.2, labelcolor=FAINT,
    )  # fmt: skip


def _stat(figure, panel, answers, box, height, _):
    named = _named(answers)
    for number, (name, series) in enumerate(named):
        value = series.points[-1][1]
        text, at = written(value, panel.defaults["unit"], panel.defaults.get("decimals")), len(named)
        if not name:
            axes = _axes(figure, box, height, left=0.05, right=0.05, bottom=0.05, top=0.5)
            axes.fill_between(*zip(*series.points), color=NAMED["blue"], alpha=0.18, linewidth=0)
            axes.set_ylim(0, max(1e-9, 1.6 * max(value for _, value in series.points)))
            axes.axis("off")
            figure.text(box[0] + box[2] / 2, box[1] + box[3] * 0.4, text, fontsize=17, ha="center", va="center",
                        color=_threshold(panel.defaults, value))  # fmt: skip
        else:
            line = box[1] + box[3] * (0.82 - 0.8 * (number + 0.5) / at)
            short = name if len(name) <= LONGEST else f"{name[: LONGEST - 2]} …"
            figure.text(box[0] + 0.01, line, short, fontsize=8, va="center", color=FAINT)
            figure.text(box[0] + box[2] - 0.01, line, text, fontsize=11, ha="right", va="center")


def _threshold(defaults, value):
    reached = [
        step["color"]
        for step in defaults["thresholds"]["steps"]
        if step["value"] is None or value >= step["value"]
    ]
    return NAMED[reached[-1]]


def _bars(figure, panel, answers, box, height, _):
    named = _named(answers)
    axes = _axes(figure, box, height, left=0.3, right=0.5, bottom=0.12, top=0.34)
    values = [series.points[-1][1] for _, series in named]
    axes.barh(range(len(values)), [panel.defaults["max"]] * len(values), color="#eceef0", height=0.72)
    axes.barh(range(len(values)), values, color=NAMED[panel.defaults["color"]["fixedColor"]], height=0.72)
    for number, value in enumerate(values):
        axes.text(1.02, number, written(value, panel.defaults["unit"], 0), va="center", fontsize=8)
    axes.set_yticks(range(len(values)), [name for name, _ in named], fontsize=8)
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def written(value, unit, decimals=None):
    """A value in Grafana's unit of that name."""
    if unit == "percentunit":
        return f"{100 * value:.{decimals or 0}f} %"
    if not value and unit in ("s", "bytes"):
        return f"0 {'s' if unit == 's' else 'B'}"
    if unit == "s":
        scale, name = next(
            (pair for pair in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")) if abs(value) >= pair[0]), (1e-9, "ns")
        )
        return f"{value / scale:.3g} {name}"
    if unit == "celsius":
        return f"{value:.0f} °C"
    if unit == "bytes":
        scale, name = next(
            pair for pair in ((2**20, "MiB"), (2**10, "KiB"), (1, "B")) if value >= pair[0] or pair[0] == 1
        )
        return f"{value / scale:.3g} {name}"
    return (
        f"{value:.{decimals}f}"
        if decimals is not None
        else f"{value:,.0f}"
        if value >= 1000
        else f"{value:.3g}"
    )
