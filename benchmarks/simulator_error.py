"""What the simulator says of a cell, beside what was emulated; and live drafters beside recorded ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from opensled_testbed.load.interval import interval

# What must agree, as keys of a summary.
COMPARED = ("output_throughput", "pace_mean", "acceptance_rate", "tokens_per_round", "positions_per_token")

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
