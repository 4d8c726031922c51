"""What the simulator says of a cell, beside what was emulated; and live drafters beside recorded ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from opensled_testbed.load.interval import interval

# What must agree, as keys of a summary.
COMPARED = ("output_throughput", "pace_mean", "acceptance_rate", "tokens_per_round", "positions_per_token")
AIM = 0.15  # largest relative error of throughput and pace that is aimed at

Summary = Mapping[str, Any]


def errors(emulated: Sequence[Summary], simulated: Sequence[Summary]) -> dict[str, float]:
    """Relative error of the simulated means, by key; keys that the emulated runs have no value for are left out."""
    found = {}
    for key in COMPARED:
        ours, theirs = (fmean(summary[key] for summary in side) for side in (emulated, simulated))
        if ours:
            found[key] = round(theirs / ours - 1, 4)
    return found


def agreement(
    runs: Iterable[Mapping[str, Any]], simulated: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Errors for each baseline of a cell, from its entries of `runs` and `simulated`; live runs are left out."""
    emulated = by_baseline(run for run in runs if not run["live"])
    others = by_baseline(simulated)
    return [
        {"baseline": baseline, "errors": errors(summaries, others[baseline])}
        for baseline, summaries in emulated.items()
        if baseline in others
    ]


def by_baseline(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[Summary]]:
    """Summaries of all repeats."""
    found: dict[str, list[Summary]] = {}
    for entry in entries:
        found.setdefault(entry["baseline"], []).append(entry["summary"])
    return found


def live_anchor(runs: Iterable[Mapping[str, Any]], baseline: str) -> dict[str, Any]:
    """Means and 95 % intervals of replayed and of live runs, and by how much the live ones differ; {} without any."""
    runs = [run for run in runs if run["baseline"] == baseline]
    live = [run["summary"] for run in runs if run["live"]]
    replay = [run["summary"] for run in runs if not run["live"]]
    if not live or not replay:
        return {}
    sides = {"replay": replay, "live": live}
    means = {
        name: {key: list(interval([summary[key] for summary in side])) for key in COMPARED}
        for name, side in sides.items()
    }
    return {**means, "difference": errors(replay, live)}


def missed(cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Where throughput or pace are further off than AIM, one line each."""
    for cell in cells:
        for entry in cell["agreement"]:
            for key in ("output_throughput", "pace_mean"):
                error = entry["errors"].get(key, 0.0)
                if abs(error) > AIM:
                    yield f"{cell['id']}, {entry['baseline']}: simulated {key} is {100 * error:+.0f} % off"


def table(cells: Iterable[Mapping[str, Any]]) -> str:
    """Error of throughput and pace for each cell and baseline, for a terminal."""
    lines = [f"{'cell':<38}{'baseline':<18}{'throughput':>11}{'pace':>8}{'capacity':>10}"]
    for cell in cells:
        capacities = {entry["baseline"]: entry for entry in cell["capacity"]}
        for entry in cell["agreement"]:
            shown = [entry["errors"].get(key) for key in ("output_throughput", "pace_mean")]
            shown.append(capacity_error(capacities.get(entry["baseline"], {})))
            cells_ = "".join(f"{_percent(value):>{width}}" for value, width in zip(shown, (11, 8, 10)))
            lines.append(f"{cell['id']:<38}{entry['baseline']:<18}{cells_}")
    return "\n".join(lines)


def capacity_error(entry: Mapping[str, Any]) -> float | None:
    """Of the simulated capacity against the emulated one; None where there is none."""
    emulated, simulated = entry.get("emulated"), entry.get("simulated")
    return simulated / emulated - 1 if emulated and simulated is not None else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"
