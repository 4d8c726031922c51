"""What regimes.json says about a cell: repeats as intervals, ratios between baselines, and what is lost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from lab.testbed.baselines import BASELINES, OF_HEADS, PARTS, RIVALS
from lab.testbed.baselines import CENTRALIZED as PLAIN
from lab.testbed.baselines import OPENSLED as OURS
from lab.testbed.load.interval import Interval, interval

LIVE = "sled-continuous"  # runs with the real drafters are of this baseline: in most cells opensled lets devices rest
OTHER_TEXT = "device-only"  # writes the draft model's text, so it is no rival for the target's
NO_RIVALS = (OURS, *PARTS, *OF_HEADS, OTHER_TEXT)
Cell = Mapping[str, Any]
ENOUGH = 0.95  # of the best rival: the 95 % interval must include or exceed it
SHARED = {"output_throughput": "throughput", "pace_mean": "pace of a user"}


@dataclass(frozen=True)
class SummaryMetric:
    """A key of a summary."""

    key: str
    title: str
    more_is_better: bool = True
    judged: bool = True  # whether being worse here counts as a loss

    def better(self, one: float, other: float) -> bool:
        return one > other if self.more_is_better else one < other


METRICS = (
    SummaryMetric("pace_mean", "pace of a user, tokens/s"),
    SummaryMetric("output_throughput", "throughput, tokens/s"),
    SummaryMetric("tokens_per_round", "tokens per round", judged=False),
    SummaryMetric("positions_per_token", "positions computed per token", more_is_better=False, judged=False),
)
FIRST_TOKEN = SummaryMetric("mean_ttft_ms", "time to first token, ms", more_is_better=False)
JUDGED = (*(metric for metric in METRICS if metric.judged), FIRST_TOKEN)


@dataclass(frozen=True)
class Loss:
    """A metric of a cell in which another way to serve the same text is better than OpenSLED."""

    cell: str
    metric: SummaryMetric
    ours: Interval
    rival: str
    theirs: Interval

    @property
    def clear(self) -> bool:
        """Whether the two intervals stand apart; a single repeat has none and shows nothing clearly."""
        single = self.ours.low == self.ours.high and self.theirs.low == self.theirs.high
        return not single and (self.ours.high < self.theirs.low or self.ours.low > self.theirs.high)


def baselines(cell: Cell) -> list[str]:
    """Those that were run, in the usual order."""
    there = {run["baseline"] for run in cell["runs"]}
    return [name for name in BASELINES if name in there] + sorted(there - set(BASELINES))


def repeats(cell: Cell, baseline: str, key: str, *, live: bool = False) -> list[float]:
    """One value for each repeat that has one."""
    runs = (run for run in cell["runs"] if run["baseline"] == baseline and bool(run["live"]) == live)
    return [value for run in runs if is_number(value := run["summary"].get(key))]


def measured(cell: Cell, baseline: str, key: str) -> Interval | None:
    """Over the repeats with recorded drafts."""
    values = repeats(cell, baseline, key)
    return interval(values) if values else None


def simulated(cell: Cell, baseline: str, key: str) -> float | None:
    """Mean of its simulated runs."""
    runs = (run for run in cell.get("simulated", ()) if run["baseline"] == baseline)
    values = [value for run in runs if is_number(value := run["summary"].get(key))]
    return fmean(values) if values else None


def ratio(cell: Cell, key: str, ours: str = OURS, against: str = PLAIN) -> float | None:
    """Mean over mean."""
    one, other = measured(cell, ours, key), measured(cell, against, key)
    return one.mean / other.mean if one and other and other.mean else None


def losses(cell: Cell, metrics: Sequence[SummaryMetric] = JUDGED) -> list[Loss]:
    """Where the best rival is ahead, by however little."""
    return [found for metric in metrics if (found := _loss(cell, metric))]


def _loss(cell: Cell, metric: SummaryMetric) -> Loss | None:
    ours = measured(cell, OURS, metric.key)
    rivals = {
        name: found
        for name in baselines(cell)
        if name not in NO_RIVALS and (found := measured(cell, name, metric.key))
    }
    if not ours or not rivals:
        return None
    side = 1 if metric.more_is_better else -1
    best = max(rivals, key=lambda name: side * rivals[name].mean)
    if not metric.better(rivals[best].mean, ours.mean):
        return None
    return Loss(str(cell["id"]), metric, ours, best, rivals[best])


def is_number(value: object) -> bool:
    """Finite ones only: "not a number" is written where nothing was measured."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def short(value: float | None) -> str:
    """Three significant digits, a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(found: Interval | None) -> str:
    """Mean and half of the 95 % interval."""
    if not found:
        return "–"
    half = found.high - found.mean
    return short(found.mean) + (f" ±{short(half)}" if half else "")


class CellShare(NamedTuple):
    """OpenSLED over the best of RIVALS in one cell, repeat by repeat: each pair met the same users."""

    cell: str
    figure: str
    rival: str
    share: Interval

    @property
    def kept(self) -> bool:
        return self.share.high >= ENOUGH

    def __str__(self) -> str:
        mean, low, high = self.share
        verdict = "kept" if self.kept else f"BELOW {ENOUGH}"
        return f"{self.cell}: {self.figure} {mean:.3f} ({low:.3f} to {high:.3f}) of {self.rival}: {verdict}"


def shares(cells: Sequence[Cell]) -> Iterator[CellShare]:
    """Of every cell in which OpenSLED and a rival were run; live runs are left out."""
    for cell in cells:
        for key, figure in SHARED.items():
            found = _share(cell, key)
            if found is not None:
                yield CellShare(str(cell["id"]), figure, *found)


def _share(cell: Cell, key: str) -> tuple[str, Interval] | None:
    """The rival with the highest mean, and the interval of the ratios to it; None without runs of both."""
    ours = _by_repeat(cell, OURS, key)
    rivals = {name: found for name in RIVALS if (found := _by_repeat(cell, name, key))}
    if not ours or not rivals:
        return None
    best = max(rivals, key=lambda name: interval(list(rivals[name].values())).mean)
    pairs = [ours[repeat] / value for repeat, value in rivals[best].items() if repeat in ours and value]
    return (best, interval(pairs)) if pairs else None


def _by_repeat(cell: Cell, baseline: str, key: str) -> dict[int, float]:
    runs = (run for run in cell["runs"] if run["baseline"] == baseline and not run["live"])
    return {run["repeat"]: value for run in runs if (value := run["summary"].get(key)) is not None}
