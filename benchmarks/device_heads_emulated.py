"""Some cells of device_heads with real servers and streams: hidden states of the target's size really travel there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from benchmarks.cell_turns import DILATION, Finished, PlannedRun, finish, short_items, shortened
from benchmarks.device_heads_cells import (
    DEVICE,
    DRAFT,
    FEW_BITS,
    NONE,
    PAIR,
    RECORDED,
    SERVER,
    WHOLE,
    Contender,
    Place,
    figures,
    sources,
)
from benchmarks.program import say
from opensled_testbed.fleet import Fleet
from opensled_testbed.load.load import Item, Load
from opensled_testbed.load.records import RunResult
from opensled_testbed.load.run import run_fleet
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import TraceSet

CELLS = (
    Place("hub", "laptop-cpu", "wifi-good", 4),
    Place("hub", "pi-5", "lte", 4),
    Place("dense-8k", "laptop-cpu", "5g", 4),
)
LOAD, QUICK_LOAD = Load(warmup=2.0, duration=12.0), Load(warmup=1.0, duration=2.0)
MAX_TOKENS = 48  # of an answer: so that windows of seconds hold whole ones


class Keeps(Protocol):
    """Remembers what is done."""

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None: ...

    def add(self, key: dict[str, Any], entry: dict[str, Any]) -> None: ...


def _contenders() -> Iterator[Contender]:
    kind = sources()[RECORDED][-1]
    yield Contender(RECORDED, NONE)
    yield Contender(RECORDED, DRAFT, 2)
    yield Contender(RECORDED, SERVER, 4, kind)
    yield Contender(RECORDED, DEVICE, WHOLE, kind, FEW_BITS)


def emulate(kept: Keeps, quick: bool) -> list[dict[str, Any]]:
    """Each contender in each of the cells, emulated and simulated with the same load."""
    load, found = QUICK_LOAD if quick else LOAD, []
    for place in CELLS[: 1 if quick else None]:
        for each in _contenders():
            key = {"emulated": asdict(place), **each._asdict(), "load": asdict(load)}
            entry = kept.get(key) or _both(place, each, load)
            if not entry["void"]:
                kept.add(key, entry)
            found.append(entry)
    return found


def _both(place: Place, contender: Contender, load: Load) -> dict[str, Any]:
    fleet = replace(contender.fleet(place), dilation=DILATION[place.server])
    traces = shortened(contender.traces, MAX_TOKENS)
    items = short_items(MAX_TOKENS, PAIR)
    done: Finished = finish(_run, fleet, items, traces, load, PlannedRun(contender.drafts, 0))
    entry = {
        **asdict(place),
        **contender._asdict(),
        "emulated": figures(done.result, place.users),
        "simulated": figures(simulate(fleet, traces, load), place.users),
        "failed": sum(bool(record.error) for record in done.result.requests),
        "late_share": round(done.late_share, 4),
        "void": done.void,
    }
    told = f"{entry['emulated']['rate']:.1f} tokens/s of a user, simulated {entry['simulated']['rate']:.1f}"
    say(f"{place.id}: {contender.drafts}: {told}{', VOID: this machine was too slow' * done.void}")
    return entry


def _run(fleet: Fleet, items: Sequence[Item], traces: TraceSet, load: Load) -> RunResult:
    return asyncio.run(run_fleet(fleet, items, traces, load))
