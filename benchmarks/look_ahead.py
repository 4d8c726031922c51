"""Plain SLED, adaptive drafts, all that the edge does against the network, and plain decoding, on eighteen cells.

    python -m benchmarks.look_ahead [--quick] [--only TEXT] [--repeats N] [--jobs N] [--out FOLDER]

First the law's word for every cell is written down, then all is emulated, in turns, and simulated beside it. Last every
fixed draft length is tried in the simulator, against which the adaptive one must hold. Emulated time is mostly waited
for, so two servers run at a time; a run with which this machine did not keep up is void, and made once more. Writes
look_ahead.json, after each part anew, then the plot beside it and the table in README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cell_turns import LATE, Finished, PlannedRun, Run, finish, short_items, shortened
from benchmarks.look_ahead_cells import (
    BANDWIDTH_POOR,
    CENTRALIZED,
    CONTENDERS,
    DENSE,
    DILATION,
    EXPECTED,
    FULL,
    PLAIN_LENGTHS,
    USERS,
    Cell,
    Effort,
    cells,
    law,
    search,
)
from benchmarks.look_ahead_plot import write_plot
from benchmarks.look_ahead_view import section
from benchmarks.program import add_quick_and_out, exit_code, folder_of, mapped, parser_of, say, write_json
from benchmarks.readme import write_readme
from benchmarks.regimes import emulate
from opensled.errors import UsageError
from opensled_testbed.load.load import Load
from opensled_testbed.load.records import RunResult
from opensled_testbed.provenance import provenance
from opensled_testbed.recordings import BUNDLED
from opensled_testbed.simulated.compare import tokens_per_round
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import TraceSet, read_traces

NAME = "look_ahead"
TRIES = 2  # of a run that is void


@dataclass(frozen=True)
class Scale:
    """How much is measured. Emulated seconds of a run before and while it counts, by regime."""

    repeats: int = 2
    warmup: float = 2.5
    duration: float = 4.0
    of_dense: float = 0.65  # a faster server needs less of both
    max_tokens: int = 32  # of an answer
    effort: Effort = FULL

    def load(self, regime: str, repeat: int) -> Load:
        """Each repeat has a seed of its own, the same for every contender."""
        share = self.of_dense if regime == DENSE else 1.0
        return Load(warmup=share * self.warmup, duration=share * self.duration, seed=repeat)


QUICK = Scale(1, 0.5, 1.0, 0.5, 12, Effort(20.0, 60.0, 1, (0, 2, 4)))


@dataclass(frozen=True)
class Place:
    """The cells that share a server and a link, and with them the runs without drafts."""

    cells: tuple[Cell, ...]
    lengths: tuple[int, ...]  # draft length of plain SLED in each of them
    scale: Scale

    def measured(self, run: Run) -> list[dict[str, Any]]:
        """An entry of the document for each cell."""
        # Cells by number, -1 = all of them.
        turns = [(-1, CENTRALIZED), *product(range(len(self.cells)), CONTENDERS)]
        made = [
            (index, self._made(run, index, contender, repeat))
            for repeat in range(self.scale.repeats)
            for index, contender in turns
        ]
        return [
            _cell_entry(cell, [entry for each, entry in made if each in (index, -1)])
            for index, cell in enumerate(self.cells)
        ]

    def _made(self, run: Run, index: int, contender: str, repeat: int) -> dict[str, Any]:
        cell, length = self.cells[max(0, index)], self.lengths[max(0, index)]
        fleet, load = cell.fleet(contender, length), self.scale.load(cell.regime, repeat)
        items, traces = short_items(self.scale.max_tokens), _traces(self.scale)
        for _ in range(TRIES):
            done = finish(run, fleet, items, traces, load, PlannedRun(contender, repeat))
            if not done.void:
                break
        entry = _run_entry(done, simulate(fleet, traces, load))
        _say(cell, entry)
        return entry


def _cell_entry(cell: Cell, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": cell.id,
        **vars(cell),
        "runs": [run for run in runs if not run["void"]],
        "void": [run for run in runs if run["void"]],
    }


def _traces(scale: Scale) -> TraceSet:
    return shortened(read_traces(BUNDLED), scale.max_tokens)


def _run_entry(done: Finished, simulated: RunResult) -> dict[str, Any]:
    """What is kept of a run; rates are tokens/s of each user."""
    tokens = tokens_per_round(done.result)
    return {
        "contender": done.turn.baseline,
        "repeat": done.turn.repeat,
        "rates": rates(done.result),
        "simulated": rates(simulated),
        "tokens_per_round": None if tokens is None else round(tokens, 3),
        "wasted": sum(record.wasted for record in done.result.requests),
        "errors": sorted({record.error for record in done.result.requests if record.error}),
        "late_share": round(done.late_share, 4),
        "stretch": round(done.stretch, 4),
        "wall_s": round(done.wall_s, 1),
        "void": done.void,
    }


def rates(result: RunResult) -> list[float]:
    """Tokens/s that reached each user within the measured window, whole answers or not."""
    tokens = [0] * USERS
    for record in result.requests:
        tokens[record.user] += sum(
            arrival.tokens for arrival in record.arrivals if result.start <= arrival.time < result.end
        )
    return [round(count / (result.end - result.start), 3) for count in tokens]


def _say(cell: Cell, entry: dict[str, Any]) -> None:
    mean, ours = (sum(entry[name]) / USERS for name in ("rates", "simulated"))
    void = "  VOID: this machine was too slow" if entry["void"] else ""
    line = f"{cell.id}: {entry['contender']:12} {entry['repeat'] + 1}: {mean:6.2f} tokens/s of a user"
    say(f"{line}, simulated {ours:6.2f}, {entry['wall_s']:.0f} s{void}")


def begun(chosen: Sequence[Cell], scale: Scale, command: str, jobs: int) -> dict[str, Any]:
    """The document before anything is measured: with the law's word for each cell."""
    origin, traces = provenance(command), _traces(scale)
    words = [{"id": cell.id, **law(cell, traces).as_json()} for cell in chosen]
    return {
        "figure": NAME,
        "title": "The edge that hides the network",
        "label": "emulated",
        "provenance": origin,
        "facts": {
            "users": USERS,
            "dilation": DILATION,
            "repeats": scale.repeats,
            "window, s": {name: scale.load(name, 0).duration for name in (BANDWIDTH_POOR, DENSE)},
            "servers at a time": jobs,
            "max_tokens": scale.max_tokens,
            "recording": BUNDLED.name,
            "lengths that plain SLED may have": [*PLAIN_LENGTHS],
            "late share or stretch that voids a run": LATE,
        },
        "law": {
            "written": origin["date"],
            "commit": origin["commit"],
            "expected from": EXPECTED,
            "cells": words,
        },
        "cells": [],
        "search": [],
    }


def measure(
    chosen: Sequence[Cell], scale: Scale, command: str, out: Path | None, run: Run = emulate, jobs: int = 1
) -> dict[str, Any]:
    """The whole document; `out` has it after each part, first with nothing but the law."""
    document = begun(chosen, scale, command, jobs)
    path = out / f"{NAME}.json" if out else None

    def keep() -> None:
        if path:
            write_json(path, document)

    keep()
    places = _places(chosen, document["law"]["cells"], scale)
    for entries in mapped(partial(Place.measured, run=run), places, jobs):
        document["cells"] += entries
        keep()
    document["search"] = search(chosen, scale.effort, jobs)
    keep()
    return document


def _places(chosen: Sequence[Cell], words: Sequence[dict[str, Any]], scale: Scale) -> list[Place]:
    lengths = {word["id"]: word["plain_length"] for word in words}
    shared: dict[tuple[str, str], list[Cell]] = {}
    for cell in chosen:
        shared.setdefault((cell.regime, cell.link), []).append(cell)
    return [Place(tuple(each), tuple(lengths[cell.id] for cell in each), scale) for each in shared.values()]


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("look_ahead", __doc__)
    add_quick_and_out(parser)
    add = parser.add_argument
    add("--only", default="", metavar="TEXT", help="cells whose name holds it, such as 'hub, pi-5'")
    add("--repeats", type=int, default=Scale.repeats, metavar="N", help="default %(default)s")
    add("--jobs", type=int, default=2, metavar="N", help="servers at a time; default %(default)s")
    add("--show", type=Path, metavar="JSON", help="measure nothing: table and plot of an earlier run")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    return exit_code(lambda: _shown(arguments, folder_of(arguments)))


def _shown(arguments: argparse.Namespace, out: Path | None) -> int:
    command = "python -m benchmarks.look_ahead" + (" --quick" if arguments.quick else "")
    scale = QUICK if arguments.quick else Scale(repeats=arguments.repeats)
    if arguments.show:
        document = json.loads(arguments.show.read_text())
    else:
        chosen = [cell for cell in cells() if arguments.only in cell.id]
        if not chosen:
            raise UsageError(f"--only {arguments.only}: no cell is called that; one is {next(cells()).id!r}")
        document = measure(chosen, scale, command, out, jobs=arguments.jobs)
    if out:
        write_plot(document, out / f"{NAME}.svg")
        print(f"written: {write_readme(out)}")
    print(*section(document), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
