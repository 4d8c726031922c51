"""The trade-off as a picture: price and energy of a token over the pace, one line a mode, and what objectives take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from lab.testbed.planner.picture import INK, LOOKS
from lab.testbed.planner.token_cost import Cost
from lab.testbed.planner.tradeoff import TradeOff
from lab.testbed.planner.tradeoff_simulated import SimulatedPoint

Measure = Callable[[Cost | SimulatedPoint], float]
# Darker than the fills of the map, for lines are thin
STROKES = {
    "centralized": "#7a7a7a",
    "server-sd": "#c98612",
    "sled-static": "#3a8fc4",
    "sled-continuous": "#1f7f66",
}
SIGNS = {"speed": "^", "balanced": "D", "cost": "o", "energy": "s"}  # of the objectives
PANELS: tuple[tuple[str, Measure], ...] = (
    ("USD per million tokens", lambda cost: cost.usd_per_million_tokens),
    ("joules per token", lambda cost: cost.joules_per_token),
)


def draw(curve: TradeOff, server: SimulatedPoint, path: Path, place: str, source: str) -> None:
    """Write the picture to `path` (.png or .svg), with a simulated server beside the curve; `place` says what runs
    where, and `source` where acceptance is from."""
    figure = Figure(figsize=(11, 5.5), facecolor="white")
    for axes, (title, measure) in zip(figure.subplots(1, 2), PANELS):
        _panel(axes, curve, measure)
        axes.plot(server.tokens_per_s, measure(server), "*", mec="white", mfc=INK, mew=0.9, ms=15, zorder=4)
        axes.set_title(title, fontsize=11, loc="left", color=INK)
    _words(figure, server, place, source)
    figure.subplots_adjust(left=0.065, right=0.985, top=0.78, bottom=0.225, wspace=0.16)
    figure.savefig(path, dpi=110)


def _panel(axes: Axes, curve: TradeOff, measure: Measure) -> None:
    for mode, colour in STROKES.items():
        line = curve.envelope(mode, measure)
        values = [measure(each.cost) for each in line]
        axes.plot([each.pace for each in line], values, color=colour, linewidth=1.8)
    for name, pick in curve.picks.items():
        # Open signs of different shapes stay apart where two objectives take the same point.
        look: Any = {"mec": STROKES[pick.found.mode], "mfc": "none", "mew": 1.8, "zorder": 3}
        axes.plot(pick.pace, measure(pick.cost), SIGNS[name], ms=11, **look)
    axes.axvline(curve.promised, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate(
        "promised",
        (curve.promised, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -11),
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
    )
    axes.set_xlabel("tokens/s for each user", color=INK)
    _scales(axes)


def _scales(axes: Axes) -> None:
    """Logarithmic both ways, with plain numbers at 1, 2 and 5."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _words(figure: Figure, server: SimulatedPoint, place: str, source: str) -> None:
    """Title, legends, and what the numbers are."""
    figure.suptitle(
        "What it costs that every user reads faster", x=0.065, y=0.975, ha="left", va="top", color=INK
    )
    modes = [Line2D([], [], color=STROKES[mode], linewidth=2.5, label=LOOKS[mode][2]) for mode in STROKES]
    looks: Any = {"ls": "", "mec": INK, "mfc": "none", "mew": 1.4, "ms": 8}
    signs = [Line2D([], [], marker=sign, label=f"objective {name}", **looks) for name, sign in SIGNS.items()]
    for handles, height in ((modes, 0.925), (signs, 0.875)):
        figure.legend(
            handles=handles,
            loc="upper left",
            ncols=4,
            frameon=False,
            fontsize=9.5,
            bbox_to_anchor=(0.055, height),
        )
    note = (
        "Lines and open signs are derived from hardware profiles by the planner's law, not measured: at each pace the "
        "best draft length of a mode, on an\naccelerator that is paid, and busy, all the time. "
        f"Acceptance: {source}.{_simulated(server)}\n"
        f"{place[0].upper()}{place[1:]}."
    )
    figure.text(0.065, 0.02, note, ha="left", va="bottom", color=INK, fontsize=8.5)


def _simulated(server: SimulatedPoint) -> str:
    return (
        f"\nThe star is simulated: a server with {server.users} users (policy goodput), and the power that it draws "
        "between steps."
    )
