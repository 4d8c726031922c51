"""What `opensled bench serve` shows: a bar while it measures, a table at the end."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lab.testbed.load.interval import Interval, interval
from lab.testbed.load.outcome import TITLE, Outcome


class FigureRow(NamedTuple):
    """A figure of the table: what people call it, its key in the summary, and how it is written."""

    title: str
    key: str
    spelling: str
    speculative: bool = False  # nothing to tell without a draft


ROWS = (
    FigureRow("output, tokens/s", "output_throughput", ".1f"),
    FigureRow("pace of a user, median", "pace_median", ".1f"),
    FigureRow("goodput, requests/s", "request_goodput", ".2f"),
    FigureRow("TTFT, mean ms", "mean_ttft_ms", ".0f"),
    FigureRow("TTFT, p99 ms", "p99_ttft_ms", ".0f"),
    FigureRow("TPOT, mean ms", "mean_tpot_ms", ".1f"),
    FigureRow("draft tokens accepted", "acceptance_rate", ".0%", True),
    FigureRow("tokens per round", "tokens_per_round", ".2f", True),
    FigureRow("draft tokens wasted", "wasted_share", ".0%", True),
    FigureRow("positions per token", "positions_per_token", ".2f"),
    FigureRow("server busy", "busy_share", ".0%"),
    FigureRow("bytes up per token", "bytes_up_per_token", ".0f"),
    FigureRow("right answers", "right_answers", ".0%"),
    FigureRow("requests failed", "failed", ".0f"),
)
UNLIMITED = "request_goodput"  # says nothing new where no limit was set


class LoadView:
    """Progress on standard error, the table on standard output."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet`: no table, and no bar."""
        self._quiet = quiet
        self._console = Console(stderr=True)

    @contextmanager
    def measuring(self, runs: int) -> Iterator[Callable[[str], Callable[[float], None]]]:
        """Yields what begins a run: its name in, what hears of its progress out."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal or self._quiet,
            transient=True,
        )
        done = 0
        with bar:
            task = bar.add_task("starting", total=runs)

            def begin(name: str) -> Callable[[float], None]:
                nonlocal done
                before, done = done, done + 1
                self.say(f"run {done} of {runs}: {name}", animated=not bar.disable)
                bar.update(task, description=f"{done}/{runs} {name}", completed=before)
                return lambda share: bar.update(task, completed=before + share)

            yield begin

    def say(self, line: str, *, animated: bool = False) -> None:
        """What happens, where no bar tells it."""
        if not animated and not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def conclude(self, outcome: Outcome) -> None:
        """The table, and what went wrong."""
        if self._quiet:
            return
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(_table(outcome))
        for contender, error in outcome.errors():
            console.print(f"{contender}: requests failed: {error}", style="red", markup=False)


def _table(outcome: Outcome) -> Table:
    """Contenders side by side."""
    means = {contender: outcome.means(contender) for contender in outcome.contenders}
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{TITLE} ({outcome.label})\n{_what(outcome)}",
        title_justify="left",
        title_style="",
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for contender in means:
        table.add_column(contender.replace("-", "-\n"), justify="right", no_wrap=True, vertical="bottom")
    table.add_row(f"users at >= {outcome.settings['slo']['pace']:g} tokens/s", *map(_served, means.values()))
    for row in _shown(outcome, means):
        table.add_row(row.title, *(_cell(row, found) for found in means.values()))
        if row.key == "output_throughput" and len(means) > 1:
            first = next(iter(means))
            table.add_row(f"  against {first}", *(_ratio(outcome, name, first) for name in means))
    return table


def _what(outcome: Outcome) -> str:
    """What stands for what, and how long it was looked at."""
    load, repeats = outcome.settings["load"], max(run.repeat for run in outcome.runs) + 1
    said = [", ".join(outcome.settings["profiles"]), f"{load['arrivals']} arrivals, {load['duration']:g} s"]
    if repeats > 1:
        said.append(f"{repeats} runs of each, ± half of a 95 % interval")
    return "; ".join(filter(None, said))


def _shown(outcome: Outcome, means: dict[str, dict[str, Interval]]) -> Iterator[FigureRow]:
    limited = any(limit is not None for name, limit in outcome.settings["slo"].items() if name != "pace")
    for row in ROWS:
        known = [found[row.key].mean for found in means.values() if row.key in found]
        told = limited if row.key == UNLIMITED else row.key != "failed" or any(known)
        if known and told:
            yield row


def _served(found: dict[str, Interval]) -> str:
    return f"{found['served'].mean:.3g} of {found['users'].mean:.0f}"


def _ratio(outcome: Outcome, contender: str, first: str) -> str:
    """Repeat by repeat, for a drift of the machine hits both."""
    ours, theirs = (outcome.series(name, "output_throughput") for name in (contender, first))
    if not all(theirs):
        return "-"
    return _spelled(interval([our / their for our, their in zip(ours, theirs)]), ".2f", "x")


def _cell(row: FigureRow, found: dict[str, Interval]) -> str:
    value = found.get(row.key)
    if value is None or (row.speculative and not found["drafted_tokens"].mean):
        return "-"
    checked = f" of {found['checked_answers'].mean:.3g}" if row.key == "right_answers" else ""
    return _spelled(value, row.spelling) + checked


def _spelled(value: Interval, spelling: str, unit: str = "") -> str:
    """The mean, and half of its 95 % confidence interval where there are repeats."""
    half = value.high - value.mean
    return f"{value.mean:{spelling}}{unit}" + (f" ±{half:{spelling}}" if half else "")
