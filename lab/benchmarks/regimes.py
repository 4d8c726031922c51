"""All baselines on the six cells: emulated end to end, in turns, with confidence intervals, and simulated beside it.

    python -m lab.benchmarks.regimes [--quick] [--cells N,...] [--repeats N] [--jobs N] [--out FOLDER]

Emulated time is mostly waited for, so two cells run at a time: whether this machine kept up is measured in each run,
and a run in which it did not is void. Writes regimes.json after each cell: a run that ends early keeps what it has.

The devices replay what was recorded with the tiny family, whose target runs for real.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.benchmarks.agreement import compared
from lab.benchmarks.cell_run import CellRun, Scale
from lab.benchmarks.cell_turns import DILATION, LATE, Run, short_items, shortened
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, mapped, parser_of, say, write_json
from lab.testbed.baselines import USUAL
from lab.testbed.cells import CELLS, Cell
from lab.testbed.fleet import Fleet
from lab.testbed.load.load import Item, Load
from lab.testbed.load.records import RunResult
from lab.testbed.load.run import run_fleet
from lab.testbed.provenance import provenance
from lab.testbed.recordings import BUNDLED
from lab.testbed.traces import TraceSet, read_traces
from opensled.core.errors import UsageError

NAME = "regimes"
QUICK = Scale(repeats=1, requests=2.0, warmup=0.5, max_tokens=12, max_users=4)
DIGITS = 5  # significant ones


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    scale = QUICK if arguments.quick else Scale(repeats=arguments.repeats)

    def work() -> int:
        chosen, out = _cells(arguments.cells), folder_of(arguments)
        cells = measure(chosen, scale, out, jobs=arguments.jobs)["cells"]
        print("simulated against emulated:", *(each for cell in cells for each in compared(cell)), sep="\n")
        return 0

    return exit_code(work)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = parser_of("regimes", __doc__)
    add_quick_and_out(parser)
    add = parser.add_argument
    add("--cells", default="", metavar="N,...", help=f"of 1 to {len(CELLS)}; default all")
    add("--repeats", type=int, default=Scale.repeats, metavar="N", help="default %(default)s")
    add("--jobs", type=int, default=2, metavar="N", help="cells at a time; default %(default)s")
    return parser.parse_args(words)


def _cells(text: str) -> list[Cell]:
    """Cells by number, counted from 1."""
    try:
        numbers = [int(word) for word in text.split(",")] if text else range(1, len(CELLS) + 1)
        chosen = [CELLS[number - 1] for number in numbers if number > 0]
    except (ValueError, IndexError):
        chosen = []
    if not chosen:
        raise UsageError(f"--cells {text}: give numbers from 1 to {len(CELLS)}, with commas between")
    return chosen


def emulate(fleet: Fleet, items: Sequence[Item], traces: TraceSet, load: Load) -> RunResult:
    """One run of a fleet, in real processes."""
    return asyncio.run(run_fleet(fleet, items, traces, load))


def measure(
    cells: Sequence[Cell],
    scale: Scale,
    out: Path | None,
    run: Run = emulate,
    jobs: int = 1,
) -> dict[str, Any]:
    """The whole document; written to `out` after each cell, cells in the order given."""
    document = _head(scale, jobs)
    for done in mapped(partial(_measured, scale, run), cells, jobs):
        document["cells"].append(_short(done))
        if out:
            write_json(out / f"{NAME}.json", document)
    return document


def _measured(scale: Scale, run: Run, cell: Cell) -> dict[str, Any]:
    traces = shortened(read_traces(BUNDLED), scale.max_tokens)
    return CellRun(cell, scale, short_items(scale.max_tokens), traces, run, say).all(USUAL)


def _head(scale: Scale, jobs: int) -> dict[str, Any]:
    return {
        "figure": NAME,
        "title": "All baselines on six cells of four regimes",
        "label": "emulated",
        "provenance": provenance(),
        "dilation": DILATION,
        "facts": {
            "repeats": scale.repeats,
            "cells at a time": jobs,
            "max_tokens": scale.max_tokens,
            "recording": BUNDLED.name,
            "late share or stretch that voids a run": LATE,
            "context": (
                "sessions hold the regime's context already when a request comes: only its own prompt is computed"
            ),
        },
        "cells": [],
    }


def _short(value: Any) -> Any:
    """Floats of a document with as many digits as mean anything."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
