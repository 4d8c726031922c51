"""Has anything become slower? A few ratios in minutes, against those of a committed baseline.

    python -m lab.benchmarks.quick [--write] [--baseline FILE]

Ratios only, so that another machine may ask, too: the product over its bare alternative in one run, the fleet with
drafts over the server alone, and an emulated fleet over the simulated one, which says what the product's own work adds.
Exits with 1 and names what is worse than the baseline by more than noise. `--write` makes a new baseline.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks import FIGURES
from lab.benchmarks.cell_turns import Finished, PlannedRun, finish, fleet_of, short_items, shortened
from lab.benchmarks.figure import Figure
from lab.benchmarks.program import FOLDER, exit_code, parser_of, say, write_json
from lab.benchmarks.regimes import emulate
from lab.testbed.cells import CELLS
from lab.testbed.load.load import Load
from lab.testbed.provenance import provenance
from lab.testbed.recordings import BUNDLED
from lab.testbed.simulated.compare import compare as compare_runs
from lab.testbed.simulator import simulate
from lab.testbed.traces import read_traces
from opensled.core.errors import OpenSledError, UsageError

BASELINE = FOLDER / "quick_baseline.json"
COMPONENTS = {  # figure -> its ratios that are watched
    "rounds": ("16 streams",),
    "edge_loop": ("tiny-draft, full acceptance",),
    "planner": ("goodput over fcfs, all kinds of devices",),
}
DRAFTING = ("sled-continuous", "opensled")
PASSES = 3  # over the components, and repeats of each emulated run
EMULATED = (replace(CELLS[1], users=6), replace(CELLS[4], users=6))
LOAD = Load(warmup=1.0, duration=4.0)
MAX_TOKENS = 24
SIGMAS, SLACK = 3.0, 0.10  # a regression is worse than the mean by so many deviations and this share of it

Ratios = dict[str, list[float]]  # name -> one value for each repeat; more is better


class RatioChange(NamedTuple):
    """One ratio, then and now."""

    name: str
    old: float
    new: float
    noise: float  # how far below `old` is still nothing

    @property
    def regressed(self) -> bool:
        return self.new < self.old - self.noise


def main(words: list[str] | None = None) -> int:
    parser = parser_of("quick", __doc__)
    parser.add_argument("--write", action="store_true", help="measure a new baseline instead of comparing")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="default %(default)s")
    arguments = parser.parse_args(words)
    return exit_code(lambda: _compared(arguments.baseline, arguments.write))


def _compared(baseline: Path, renew: bool) -> int:
    old = None if renew else read(baseline)
    origin = provenance()
    started = time.monotonic()
    found = measure()
    say(f"measured in {time.monotonic() - started:.0f} s")
    if old is not None:
        return _report(compare(old, found))
    write_json(baseline, as_json(found, origin))
    print(f"written: {baseline}")
    return 0


def measure() -> Ratios:
    """Everything, in turns: what drifts hits all repeats of all ratios alike."""
    found: Ratios = {}
    for number in range(PASSES):
        for name, value in [*_components(), *_emulated(number)]:
            found.setdefault(name, []).append(value)
    return found


def _components() -> Iterator[tuple[str, float]]:
    for name, ratios in COMPONENTS.items():
        figure: Figure = FIGURES.get(name)(True)
        say(f"{figure.title}: measured")
        for ratio in figure.ratios:
            if ratio.name in ratios:
                yield f"{name}: {ratio.name}", statistics.median(figure.of_each_repeat(ratio))


def _emulated(number: int) -> Iterator[tuple[str, float]]:
    traces = shortened(read_traces(BUNDLED), MAX_TOKENS)
    items = short_items(MAX_TOKENS)
    for cell in EMULATED:
        speeds: dict[str, float] = {}
        for turn in [PlannedRun(name, number) for name in ("centralized", *DRAFTING)]:
            fleet = fleet_of(cell, turn, 4)
            done = _require_valid(finish(emulate, fleet, items, traces, LOAD, turn))
            simulated = simulate(fleet, traces, replace(LOAD, seed=number))
            throughput = compare_runs(done.result, simulated)["throughput"]
            speeds[turn.baseline] = throughput["emulated"]
            say(f"{cell.id}, {turn.baseline}: {throughput['emulated']:.1f} tokens/s")
            ratio = throughput["emulated"] / throughput["simulated"]
            yield f"{cell.id}: {turn.baseline}, emulated over simulated", ratio
        for name in DRAFTING:
            yield f"{cell.id}: {name} over centralized", speeds[name] / speeds["centralized"]


def _require_valid(done: Finished) -> Finished:
    """A machine that is too slow for the emulation must not look like a regression of the product."""
    if done.void:
        raise OpenSledError(
            f"{100 * done.late_share:.0f} % of the accelerator's steps were late, by {100 * done.stretch:.0f} % "
            "of all time: this machine is too busy to compare anything; try again when it is quiet"
        )
    return done


def as_json(found: Mapping[str, Sequence[float]], origin: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "baseline": "quick",
        "provenance": origin,
        "labels": {name: label_of(name) for name in found},
        "samples": {name: [round(value, 4) for value in values] for name, values in found.items()},
    }


def label_of(name: str) -> str:
    """What a ratio is a ratio of: figures measure real programs, the others emulated or simulated runs."""
    if name.partition(":")[0] in COMPONENTS:
        return "real"
    return "emulated / simulated" if name.endswith("over simulated") else "emulated"


def read(path: Path) -> Ratios:
    """The samples of a baseline; raises UsageError where there is none."""
    try:
        samples = json.loads(path.read_text())["samples"]
        return {name: [float(value) for value in values] for name, values in samples.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is no baseline ({error}); make one with --write") from error


def compare(old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]]) -> list[RatioChange]:
    """One verdict for each ratio of both. Raises UsageError where a ratio of the baseline was not measured."""
    if missing := sorted(set(old) - set(new)):
        raise UsageError(
            f"the baseline has ratios that are not measured any more ({missing[0]}); renew it: --write"
        )
    return [
        RatioChange(name, statistics.fmean(values), statistics.median(new[name]), noise(values))
        for name, values in old.items()
    ]


def noise(values: Sequence[float]) -> float:
    """How much less than the mean of a baseline's repeats is still noise."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return SIGMAS * spread + SLACK * statistics.fmean(values)


def _report(verdicts: Sequence[RatioChange]) -> int:
    for each in verdicts:
        mark = "REGRESSED" if each.regressed else "ok"
        print(f"{mark:10}{each.name:82} {each.old:7.3f} -> {each.new:7.3f}  (noise {each.noise:.3f})")
    worse = [each.name for each in verdicts if each.regressed]
    if worse:
        say(f"{len(worse)} of {len(verdicts)} ratios are worse than the baseline beyond noise")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
