"""The runs of one cell: which, in which order, at which time dilation, and which of them do not count."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lab.testbed.baselines import BASELINES
from lab.testbed.cells import Cell
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.fleet import Fleet
from lab.testbed.load.load import Item, Load
from lab.testbed.load.records import RunResult
from lab.testbed.traces import ItemTrace, TraceSet

# A run is void when more of its steps were late, or all of them took longer by more than this share
LATE = 0.05

# Real seconds for each emulated one: so many that a step's real work stays near a fifth of it on a 2-core machine.
DILATION = {"dense-1k": 8.0, "dense-8k": 4.0, "moe": 3.5, "hub": 2.0}


class PlannedRun(NamedTuple):
    """One run."""

    baseline: str
    repeat: int


@dataclass(frozen=True)
class Finished:
    """One run that was made."""

    turn: PlannedRun
    result: RunResult
    wall_s: float  # real seconds, the server's start included
    cpu_s: float  # CPU seconds of this process, which plays all devices and links

    @property
    def late_share(self) -> float:
        """Of the emulated accelerator's steps."""
        emulation = self.result.emulation
        return emulation["late_steps"] / max(1, emulation["steps"]) if emulation else 0.0

    @property
    def stretch(self) -> float:
        """By how much all steps took longer than they stood for, late ones and the timer's error; relative."""
        emulation = self.result.emulation
        over_s = emulation.get("late_s", 0.0) + emulation.get("overshot_s", 0.0)
        return over_s / emulation["due_s"] if emulation.get("due_s") else 0.0

    @property
    def void(self) -> bool:
        """Whether this machine was measured instead of the profile."""
        return self.late_share > LATE or self.stretch > LATE

    @property
    def real_share(self) -> dict[str, float]:
        """Real work over the real time it had: of the engine's steps, and of this process."""
        emulation = self.result.emulation
        engine = emulation["work_s"] / emulation["due_s"] if emulation.get("due_s") else 0.0
        return {"engine": round(engine, 3), "testbed": round(self.cpu_s / self.wall_s, 3)}


# What makes a run: (fleet, items, traces, load) -> what happened.
Run = Callable[[Fleet, Sequence[Item], TraceSet, Load], RunResult]


def turns(baselines: Sequence[str], repeats: int) -> Iterator[PlannedRun]:
    """A B C D A B C D ..."""
    for repeat in range(repeats):
        for baseline in baselines:
            yield PlannedRun(baseline, repeat)


def fleet_of(cell: Cell, turn: PlannedRun, length: int) -> Fleet:
    """The cell's fleet as the baseline changes it; `length`: draft tokens. A device alone does no real work, so its
    time is not stretched."""
    base = replace(cell.fleet(draft_length=length), dilation=DILATION[cell.regime])
    fleet = BASELINES[turn.baseline](base)
    if turn.baseline == "device-only":
        return replace(fleet, dilation=1.0)
    return fleet


def finish(
    run: Run, fleet: Fleet, items: Sequence[Item], traces: TraceSet, load: Load, turn: PlannedRun
) -> Finished:
    """Make one run; each repeat has a seed of its own, the same for every baseline."""
    started, cpu = time.monotonic(), time.process_time()
    result = run(fleet, items, traces, replace(load, seed=turn.repeat))
    return Finished(turn, result, time.monotonic() - started, time.process_time() - cpu)


def short_items(max_tokens: int) -> list[Item]:
    """The items recorded with the tiny family, with answers of at most `max_tokens`."""
    return [replace(item, max_tokens=min(item.max_tokens, max_tokens)) for item in recorded_items()]


def shortened(traces: TraceSet, max_tokens: int) -> TraceSet:
    """The same recordings as they would be with fewer tokens an answer."""
    return replace(traces, items=tuple(_cut(trace, max_tokens) for trace in traces.items))


def _cut(trace: ItemTrace, max_tokens: int) -> ItemTrace:
    cut = replace(trace, alone_ids=trace.alone_ids[:max_tokens])
    if len(trace.target_ids) <= max_tokens:
        return cut
    text, proposals = trace.target_ids[:max_tokens], trace.proposals[:max_tokens]
    return replace(cut, target_ids=text, proposals=proposals, finish_reason="length")


def as_json(done: Finished, summary: dict[str, Any]) -> dict[str, Any]:
    """One entry of a cell's `runs`."""
    return {
        **done.turn._asdict(),
        "summary": summary,
        "late_share": round(done.late_share, 4),
        "stretch": round(done.stretch, 4),
        "real_share": done.real_share,
        "wall_s": round(done.wall_s, 1),
    }
