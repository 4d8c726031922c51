"""What the simulator says of three tiers, against real relays and servers on emulated machines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cell_turns import LATE, Finished, PlannedRun, finish
from benchmarks.program import say
from opensled_testbed.emulation.recorded_items import recorded_items
from opensled_testbed.fleet import Fleet, Group, Hub, Server
from opensled_testbed.load.load import Load
from opensled_testbed.load.run import run_fleet
from opensled_testbed.simulated.compare import compare
from opensled_testbed.simulated.hierarchy import PATIENCE_S, recordings
from opensled_testbed.simulator import simulate

DILATION = 8.0  # real seconds for each emulated one
LOAD = Load(warmup=2.0, duration=10.0)
# Real ones stand for `others` of a simulation: fewer places, so that one process plays all
CLOUD = Server(accelerator="a100-80", target="dense-32b", context=1024, draft_wait=PATIENCE_S)
HUB = Hub(context=1024, policy="fcfs", draft_wait=PATIENCE_S, bound=0.4)


@dataclass(frozen=True)
class Emulated:
    """One fleet that is emulated: the bundled target and `tiny-hub` run, at the pace of these machines."""

    hub: str
    model: str
    rtt_ms: int
    block: int
    drafts: int  # draft tokens of the devices; 0 = they only read

    @property
    def id(self) -> str:
        below = f"devices draft {self.drafts}" if self.drafts else "devices read"
        return f"{self.hub} with {self.model}, {self.rtt_ms} ms, blocks of {self.block}, {below}"

    @property
    def fleet(self) -> Fleet:
        """Two users of one hub."""
        device = Group(
            2, "orin-nano-super", "ethernet", draft="135m", draft_length=self.drafts, look_ahead=True
        )
        group = device if self.drafts else Group(2, link="ethernet", drafter="none")
        hub = replace(
            HUB, accelerator=self.hub, target=self.model, link=f"wan-{self.rtt_ms}", block=self.block
        )
        return Fleet(CLOUD, (group,), DILATION, hub)


CELLS = (
    Emulated("strix-halo", "draft-1.5b", 20, 4, 0),
    Emulated("strix-halo", "draft-3b", 60, 8, 0),
    Emulated("orin-nano-super", "draft-3b", 20, 8, 4),
)


def measured(cell: Emulated) -> dict[str, Any]:
    """Both runs of a cell, figure by figure."""
    traces = recordings().tiers
    done = finish(_run, cell.fleet, recorded_items(), traces, LOAD, PlannedRun("hierarchy", 0))
    simulated = simulate(cell.fleet, traces, LOAD)
    entry = {"id": cell.id, **vars(cell), **_machine(done)}
    entry["figures"] = {
        name: {key: round(value, 4) for key, value in figure.items()}
        for name, figure in compare(done.result, simulated).items()
    }
    vetted = [result.hubs.tokens / max(1, result.server.tokens) for result in (done.result, simulated)]
    entry["figures"]["vetted_per_token"] = {
        "emulated": round(vetted[0], 4),
        "simulated": round(vetted[1], 4),
        "error": round(vetted[1] / vetted[0] - 1, 4),
    }
    errors = ", ".join(f"{name} {figure['error']:+.1%}" for name, figure in entry["figures"].items())
    say(f"emulated: {cell.id}: {errors}; void: {done.void}")
    return entry


def _run(fleet: Fleet, items: Any, traces: Any, load: Load) -> Any:
    return asyncio.run(run_fleet(fleet, items, traces, load))


def _machine(done: Finished) -> dict[str, Any]:
    """Whether this machine kept up: server and hub together."""
    return {
        "late_share": round(done.late_share, 4),
        "stretch": round(done.stretch, 4),
        "void_above": LATE,
        "void": done.void,
        "errors": sorted({record.error for record in done.result.requests if record.error}),
        "wall_s": round(done.wall_s, 1),
    }
