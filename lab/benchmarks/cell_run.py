"""One cell measured: its draft length, and every turn emulated and simulated."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from lab.benchmarks.cell_turns import DILATION, PlannedRun, Run, as_json, finish, fleet_of, turns
from lab.testbed.baselines import SERVER_SD
from lab.testbed.cells import Cell
from lab.testbed.load.load import Item, Load
from lab.testbed.load.slo import Slo
from lab.testbed.load.summary import summarise
from lab.testbed.simulator import simulate
from lab.testbed.traces import TraceSet

LENGTHS = (2, 4, 8)  # draft lengths that are looked at
# Baselines that have one
DRAFTING = (SERVER_SD, "sled-static", "sled-continuous")
LOOK = Load(warmup=3, duration=20)  # of the simulations that choose the draft length and the window


@dataclass(frozen=True)
class Scale:
    """How much is measured. Windows are in mean requests of the slowest baseline, as simulated."""

    repeats: int = 3
    requests: float = 2.0  # the measured window
    warmup: float = 0.8  # before it
    max_tokens: int = 32  # of an answer: so that windows of seconds hold whole answers
    max_users: int = 1 << 20  # a smaller number cuts the cells down


@dataclass
class CellRun:
    """One cell; `run` makes one emulated run, `say` hears a line after each."""

    cell: Cell
    scale: Scale
    items: Sequence[Item]
    traces: TraceSet
    run: Run
    say: Callable[[str], None]
    lengths: dict[str, int] = field(default_factory=dict)  # of each baseline

    def __post_init__(self) -> None:
        self.cell = replace(self.cell, users=min(self.cell.users, self.scale.max_users))

    def all(self, baselines: Sequence[str]) -> dict[str, Any]:
        """The cell's entry of the document."""
        self.lengths = {name: self._best_length(name) for name in baselines}
        # Long enough for whole answers of the slowest baseline.
        slowest = max(self._look(name, self.lengths[name])["mean_e2el_ms"] for name in baselines) / 1000
        load = Load(
            warmup=round(self.scale.warmup * slowest, 2), duration=round(self.scale.requests * slowest, 2)
        )
        told = {name: length for name, length in self.lengths.items() if name in DRAFTING}
        self.say(f"{self.cell.id}: draft lengths {told}, window {load.duration:.1f} s")
        runs, void = self._emulate(baselines, load)
        simulated = [
            {**turn._asdict(), "summary": self._simulated(turn, load)}
            for turn in turns(baselines, self.scale.repeats)
        ]
        return {
            "id": self.cell.id,
            **asdict(self.cell),
            "fleet": asdict(self.cell.fleet()),
            "draft_lengths": told,
            "dilation": DILATION[self.cell.regime],
            "load": asdict(load),
            "runs": runs,
            "void": void,
            "simulated": simulated,
        }

    @property
    def slo(self) -> Slo:
        return Slo(pace=self.cell.pace)

    def _best_length(self, baseline: str) -> int:
        """Of a baseline that has one; the others take what comes."""
        return max(LENGTHS, key=partial(self._worth, baseline)) if baseline in DRAFTING else LENGTHS[0]

    def _worth(self, baseline: str, length: int) -> tuple[float, float]:
        """Of a draft length, by a short simulation: most users served, then most tokens."""
        summary = self._look(baseline, length)
        return summary["served"], summary["output_throughput"]

    def _look(self, baseline: str, length: int) -> dict[str, Any]:
        fleet = fleet_of(self.cell, PlannedRun(baseline, 0), length)
        return summarise(simulate(fleet, self.traces, LOOK), self.slo)

    def _emulate(
        self, baselines: Sequence[str], load: Load
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Entries of the runs that count, and of those that do not."""
        runs: list[dict[str, Any]] = []
        void: list[dict[str, Any]] = []
        for turn in turns(baselines, self.scale.repeats):
            fleet = fleet_of(self.cell, turn, self.lengths[turn.baseline])
            done = finish(self.run, fleet, self.items, self.traces, load, turn)
            entry = as_json(done, summarise(done.result, self.slo))
            (void if done.void else runs).append(entry)
            self.say(
                f"{self.cell.id}:{_line(entry)}" + ("  VOID: this machine was too slow" if done.void else "")
            )
        return runs, void

    def _simulated(self, turn: PlannedRun, load: Load) -> dict[str, Any]:
        fleet = fleet_of(self.cell, turn, self.lengths[turn.baseline])
        return summarise(simulate(fleet, self.traces, replace(load, seed=turn.repeat)), self.slo)


def _line(entry: dict[str, Any]) -> str:
    summary, name = entry["summary"], entry["baseline"]
    return (
        f"  {name:22} {entry['repeat'] + 1}: {summary['output_throughput']:7.1f} tokens/s, pace "
        f"{summary['pace_mean']:5.1f}, served {summary['served']}/{summary['users']}, real work "
        f"{100 * entry['real_share']['engine']:.0f} %, {entry['wall_s']:.0f} s"
    )
