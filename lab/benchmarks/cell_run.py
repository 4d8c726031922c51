"""One cell measured: its draft length, every turn emulated and simulated, and capacities."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from lab.benchmarks.accuracy import agreement, live_anchor
from lab.benchmarks.cell_turns import DILATION, LIVE, PlannedRun, Run, as_json, finish, fleet_of, turns
from lab.testbed.baselines import OF_HEADS, SERVER_SD
from lab.testbed.cells import Cell
from lab.testbed.fleet import Fleet
from lab.testbed.load.load import Item, Load
from lab.testbed.load.slo import Slo, holds
from lab.testbed.load.summary import summarise
from lab.testbed.planner.capacity_search import MOST, largest
from lab.testbed.simulator import simulate
from lab.testbed.traces import TraceSet

LENGTHS = (2, 4, 8)  # draft lengths that are looked at
# Baselines that have one
DRAFTING = (SERVER_SD, "sled-static", "sled-continuous", *filter(lambda name: SERVER_SD in name, OF_HEADS))
LOOK = Load(warmup=3, duration=20)  # of the simulations that choose the draft length and the window
OUTCOMES = {True: "holds", False: "fails", None: "VOID: this machine was too slow"}
ALONE = "device-only"  # no server: its capacity is no question

Holds = Callable[[int], bool | None]  # None: the run was void

MAX_EMULATED = 48  # devices that one small machine can play beside the server
STEP = 0.1  # between the numbers of users that are tried, relative to the simulated capacity
TRIES = 3


@dataclass(frozen=True)
class Scale:
    """How much is measured. Windows are in mean requests of the slowest baseline, as simulated."""

    repeats: int = 3
    requests: float = 2.0  # the measured window
    warmup: float = 0.8  # before it
    max_tokens: int = 32  # of an answer: so that windows of seconds hold whole answers
    max_users: int = 1 << 20  # a smaller number cuts the cells down and leaves emulated capacities out


@dataclass
class CellRun:
    """One cell; `run` makes one emulated run, `say` hears a line after each."""

    cell: Cell
    scale: Scale
    items: Sequence[Item]
    traces: TraceSet
    run: Run | None  # None = nothing is emulated
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
            for turn in turns(replace(self.cell, live=False), baselines, self.scale.repeats)
        ]
        longer = replace(load, duration=round(2 * load.duration, 2))
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
            "agreement": agreement(runs, simulated),
            "live_anchor": live_anchor(runs, LIVE),
            "capacity": [
                {"baseline": name, "load": asdict(longer), **self._capacity(name, longer)}
                for name in baselines
                if name != ALONE
            ],
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
        if self.run is None:
            return runs, void
        for turn in turns(self.cell, baselines, self.scale.repeats):
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

    def _capacity(self, baseline: str, load: Load) -> dict[str, Any]:
        """Both by the same load; never more users than the server has KV for.

        Emulated for cells with live anchors, where that takes few enough users.
        """
        most = min(MOST, self._fleet(baseline, 1).server.sessions_that_fit)

        def holds_simulated(users: int) -> bool:
            return holds(simulate(self._fleet(baseline, users), self.traces, load), self.slo)

        users = largest(holds_simulated, self.cell.users, most)
        if not self.run or not self.cell.live or self.scale.max_users < MAX_EMULATED:
            real = not_emulated("only cells with live anchors are")
        else:
            real = emulated_capacity(lambda count: self._holds_emulated(baseline, count, load), users)
        return {"simulated": users, "most": most, **real}

    def _fleet(self, baseline: str, users: int) -> Fleet:
        return fleet_of(replace(self.cell, users=users), PlannedRun(baseline, 0), self.lengths[baseline])

    def _holds_emulated(self, baseline: str, users: int, load: Load) -> bool | None:
        """None for a void run."""
        assert self.run
        fleet = self._fleet(baseline, users)
        done = finish(self.run, fleet, self.items, self.traces, load, PlannedRun(baseline, 0))
        kept = None if done.void else holds(done.result, self.slo)
        self.say(f"{self.cell.id}:  {baseline} with {users} users: {OUTCOMES[kept]}")
        return kept


def _line(entry: dict[str, Any]) -> str:
    summary, name = entry["summary"], entry["baseline"] + (" live" if entry["live"] else "")
    return (
        f"  {name:22} {entry['repeat'] + 1}: {summary['output_throughput']:7.1f} tokens/s, pace "
        f"{summary['pace_mean']:5.1f}, served {summary['served']}/{summary['users']}, real work "
        f"{100 * entry['real_share']['engine']:.0f} %, {entry['wall_s']:.0f} s"
    )


def emulated_capacity(holds: Holds, simulated: int) -> dict[str, Any]:
    """`emulated`: the largest number of users tried that holds, 0 if none does; `held`: what became of each try.

    At the simulated capacity first, then in steps upwards while they hold, or downwards until one does. `emulated` is
    None, and `not_emulated` says why, where that takes more devices than can be played or a run was void.
    """
    if not simulated or _stepped(simulated, 1) > MAX_EMULATED:
        return not_emulated(f"{simulated} users")
    held: dict[int, bool] = {}
    users = simulated
    while len(held) < TRIES and users not in held:
        kept = holds(users)
        if kept is None:
            return not_emulated(f"void with {users} users: this machine was too slow")
        held[users] = kept
        if kept != held[simulated]:
            break
        users = _stepped(simulated, len(held) if kept else -len(held))
    tried = {str(users): kept for users, kept in held.items()}
    return {
        "emulated": max((users for users, kept in held.items() if kept), default=0),
        "held": tried,
        "step": STEP,
    }


def not_emulated(reason: str) -> dict[str, Any]:
    """An entry without an emulated capacity."""
    return {"emulated": None, "not_emulated": reason}


def _stepped(users: int, steps: int) -> int:
    return max(1, users + steps * max(1, round(STEP * users)))
