"""What runs are worth: the simulator beside the emulation, live drafters beside recorded ones, right answers."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from lab.testbed.load.interval import interval
from lab.testbed.load.load import Item
from lab.testbed.load.outcome import CHECKS
from lab.testbed.traces import TraceSet
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer

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


def accuracy(items: Sequence[Item], traces: TraceSet) -> dict[str, Any]:
    """What device-only serving gives up: shares of right answers of the target, and of the draft model alone.

    Over those of `items` that have one, all tasks together and each by itself.
    """
    tokenizer = TargetTokenizer((model_path(traces.target) / "tokenizer.json").read_bytes())
    by_id = {trace.item: trace for trace in traces.items}
    tasks: dict[str, list[tuple[bool, bool]]] = {}
    for item in items:
        if item.task in CHECKS and item.answer and item.id in by_id:
            check, trace = CHECKS[item.task], by_id[item.id]
            target, alone = (tokenizer.decode(ids) for ids in (trace.target_ids, trace.alone_ids))
            right = check(target, item.answer), check(alone, item.answer)
            tasks.setdefault(item.task, []).append(right)
    every = [pair for pairs in tasks.values() for pair in pairs]
    return {**_shares(every), "tasks": {task: _shares(pairs) for task, pairs in tasks.items()}}


def _shares(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    if not pairs:
        return {"items": 0}
    target, alone = (sum(side) / len(pairs) for side in zip(*pairs))
    return {"items": len(pairs), "target": round(target, 4), "draft_alone": round(alone, 4)}
