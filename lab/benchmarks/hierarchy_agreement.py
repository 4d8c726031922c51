"""What the simulator says of three tiers, against real relays and servers on emulated machines.

    python -m lab.benchmarks.hierarchy_agreement [--quick] [--out FOLDER]

Each fleet runs once, for minutes: the bundled target, tiny-hub and the devices' recorded drafts, in real processes with
emulated links between all three tiers, at the pace of the machines they stand for. Then the same fleet is simulated.
Writes hierarchy_agreement.json after each fleet.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.benchmarks.cell_turns import LATE, Finished, PlannedRun, finish
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_json
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.fleet import Fleet, Group, Hub, Server
from lab.testbed.load.load import Load
from lab.testbed.load.run import run_fleet
from lab.testbed.provenance import provenance
from lab.testbed.simulated.compare import compare
from lab.testbed.simulated.hierarchy import PATIENCE_S, recordings
from lab.testbed.simulator import simulate

NAME = "hierarchy_agreement"
DILATION = 16.0  # real seconds for each emulated one
LOAD = Load(warmup=2.0, duration=10.0)
QUICK_LOAD = Load(warmup=0.5, duration=2.0)
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


def measured(cell: Emulated, load: Load) -> dict[str, Any]:
    """Both runs of a cell, figure by figure."""
    traces = recordings().tiers
    done = finish(_run, cell.fleet, recorded_items(), traces, load, PlannedRun("hierarchy", 0))
    simulated = simulate(cell.fleet, traces, load)
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


def section(document: Any) -> list[str]:
    """For README.md and docs/hierarchy.md; nothing in it is written by hand."""
    cells = document["cells"]
    names = list(dict.fromkeys(name for cell in cells for name in cell["figures"]))
    rows = [(cell["id"], *(_both(cell["figures"].get(name)) for name in names)) for cell in cells]
    return [
        "## Three tiers, simulated against emulated",
        "",
        "Simulated value / emulated value (difference), the same questions in both. "
        f"`{document['provenance']['command']}`",
        "",
        *table(("two users of a hub", *(name.replace("_", " ") for name in names)), rows),
        "",
    ]


def _both(figure: dict[str, float] | None) -> str:
    if figure is None:
        return ""
    return f"{figure['simulated']:.2f} / {figure['emulated']:.2f} ({100 * figure['error']:+.1f} %)"


def begun(cells: Sequence[Emulated], load: Load) -> dict[str, Any]:
    """The document without its cells yet."""
    return {
        "figure": NAME,
        "title": "Three tiers, simulated against emulated",
        "label": "emulated",
        "provenance": provenance(),
        "facts": {
            "dilation": DILATION,
            "window, s": load.duration,
            "server": f"{CLOUD.target} on {CLOUD.accelerator}, context {CLOUD.context}",
            "fleets": [cell.id for cell in cells],
        },
        "cells": [],
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _main(arguments.quick, folder_of(arguments)))


def _main(quick: bool, out: Path | None) -> int:
    chosen, load = (CELLS[:1], QUICK_LOAD) if quick else (CELLS, LOAD)
    document = begun(chosen, load)
    for cell in chosen:
        document["cells"].append(measured(cell, load))
        if out:
            write_json(out / f"{NAME}.json", document)
    print(*section(document), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
