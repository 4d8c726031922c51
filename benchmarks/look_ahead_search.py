"""The best fixed draft length of every cell, by trying all of them in the simulator; beside it the adaptive rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean
from typing import Any

from benchmarks.look_ahead_cells import EVERYTHING, LONGEST, USERS, Cell, served_by
from benchmarks.program import mapped
from opensled_testbed.fleet import Fleet
from opensled_testbed.load.load import Load
from opensled_testbed.planner.planning import draft_wait
from opensled_testbed.planner.setting import RECORDED, of_fleet, recorded
from opensled_testbed.simulated.compare import throughput
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import TraceSet, read_traces

POLICIES = ("goodput", "fcfs")  # the server that advises, and one that takes every length as it comes


@dataclass(frozen=True)
class Effort:
    """How long is simulated, in tokens that plain decoding writes for each user, and with how many seeds."""

    warmup: float = 100.0
    tokens: float = 600.0
    seeds: int = 3
    lengths: tuple[int, ...] = tuple(range(LONGEST + 1))


FULL = Effort()
QUICK = Effort(20.0, 60.0, 1, (0, 2, 4))


def search(cells: Sequence[Cell], effort: Effort, workers: int) -> list[dict[str, Any]]:
    """An entry of the document for each cell; on so many processes, 1 = on this one."""
    return list(mapped(partial(_searched, effort), cells, workers))


def _searched(effort: Effort, cell: Cell) -> dict[str, Any]:
    load = _load(cell, effort)
    fixed = {
        policy: [_rate(_fixed(cell, policy, length), load, effort.seeds) for length in effort.lengths]
        for policy in POLICIES
    }
    adaptive = _rate(cell.fleet(EVERYTHING, 0), load, effort.seeds)
    best, policy, length = max(
        (rate, policy, length)
        for policy, rates in fixed.items()
        for length, rate in zip(effort.lengths, rates)
    )
    return {
        "id": cell.id,
        "lengths": [*effort.lengths],
        "fixed": fixed,
        "best": best,
        "best_length": length,
        "best_policy": policy,
        "adaptive": adaptive,
        "share": round(adaptive / best, 4),
    }


def _fixed(cell: Cell, policy: str, length: int) -> Fleet:
    """Blocks of `length`, drafted ahead as well; `fcfs` waits for them as the planner advises."""
    fleet = cell.fleet(EVERYTHING, 0)
    group = replace(fleet.groups[0], stop="fixed", draft_length=length)
    fleet = served_by(policy, replace(fleet, groups=(group,)))
    wait = draft_wait(of_fleet(fleet, recorded(_traces())), length)
    return replace(fleet, server=replace(fleet.server, draft_wait=wait)) if policy == "fcfs" else fleet


@cache
def _traces() -> TraceSet:
    return read_traces(RECORDED)


def _load(cell: Cell, effort: Effort) -> Load:
    step_s = of_fleet(cell.fleet(EVERYTHING, 0), recorded(_traces())).step_s(USERS, 0, 1)
    return Load(warmup=round(effort.warmup * step_s, 2), duration=round(effort.tokens * step_s, 2))


def _rate(fleet: Fleet, load: Load, seeds: int) -> float:
    """Tokens/s of a user, a mean over seeds."""
    found = [throughput(simulate(fleet, _traces(), replace(load, seed=seed))) for seed in range(seeds)]
    return round(fmean(rate or 0.0 for rate in found) / USERS, 3)
