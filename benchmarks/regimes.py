"""All baselines on the six cells: emulated end to end, in turns, with confidence intervals, and simulated beside it.

    python -m benchmarks.regimes [--quick] [--cells N,...] [--repeats N] [--jobs N] [--out FOLDER]

Emulated time is mostly waited for, so two cells run at a time: whether this machine kept up is measured in each run,
and a run in which it did not is void. Writes regimes.json after each cell: a run that ends early keeps what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.accuracy import accuracy
from benchmarks.cell_run import CellRun, Scale
from benchmarks.cell_turns import DILATION, LATE, Run, shortened
from benchmarks.simulator_error import missed, table
from opensled.errors import OpenSledError, UsageError
from opensled_testbed.baselines import BASELINES
from opensled_testbed.cells import CELLS, Cell
from opensled_testbed.emulation.recorder import recorded_items
from opensled_testbed.fleet import Fleet
from opensled_testbed.load.load import Load
from opensled_testbed.load.records import RunResult
from opensled_testbed.load.run import run_fleet
from opensled_testbed.load.workload import Item
from opensled_testbed.provenance import provenance
from opensled_testbed.report.cell_verdict import shares
from opensled_testbed.traces import PACKAGED, TraceSet, read_traces

NAME = "regimes"
FOLDER = Path("docs/benchmarks")
RECORDING = PACKAGED / "tiny-llamacpp.jsonl.gz"
QUICK = Scale(repeats=1, requests=2.0, warmup=0.5, max_tokens=12, most_users=4)
DIGITS = 5  # significant ones


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    command = "python -m benchmarks.regimes" + (" --quick" if arguments.quick else "")
    scale = QUICK if arguments.quick else Scale(repeats=arguments.repeats)
    try:
        document = measure(_cells(arguments.cells), scale, command, arguments.out, jobs=arguments.jobs)
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("simulated against emulated:", table(document["cells"]), *missed(document["cells"]), sep="\n")
    print("opensled against the best of the others:", *shares(document["cells"]), sep="\n")
    return 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regimes")
    parser.add_argument(
        "--quick", action="store_true", help="few users and short windows: shows that it runs"
    )
    parser.add_argument("--cells", default="", metavar="N,...", help=f"of 1 to {len(CELLS)}; default all")
    parser.add_argument("--repeats", type=int, default=Scale.repeats, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="cells at a time; default %(default)s"
    )
    parser.add_argument("--out", type=Path, help=f"default {FOLDER}, and nowhere with --quick")
    arguments = parser.parse_args(words)
    arguments.out = arguments.out or (None if arguments.quick else FOLDER)
    return arguments


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
    command: str,
    out: Path | None,
    run: Run = emulate,
    jobs: int = 1,
) -> dict[str, Any]:
    """The whole document; written to `out` after each cell, cells in the order given."""
    document = _head(scale, provenance(command), accuracy(recorded_items(), read_traces(RECORDING)), jobs)
    for done in _measured(cells, scale, run, jobs):
        document["cells"].append(_short(done))
        if out:
            write(out / f"{NAME}.json", document)
    return document


def _measured(cells: Sequence[Cell], scale: Scale, run: Run, jobs: int) -> Iterator[dict[str, Any]]:
    """Entries of the cells, `jobs` of them at a time, in processes of their own if more than one."""
    one = partial(_cell, scale, run)
    if jobs == 1:
        yield from map(one, cells)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, cells)


def _cell(scale: Scale, run: Run, cell: Cell) -> dict[str, Any]:
    """One cell's entry."""
    traces = shortened(read_traces(RECORDING), scale.max_tokens)

    def say(line: str) -> None:
        print(line if line.startswith(cell.id) else f"{cell.id}:{line}", file=sys.stderr, flush=True)

    return CellRun(cell, scale, scale.shortened(recorded_items()), traces, run, say).all(tuple(BASELINES))


def _head(scale: Scale, origin: Mapping[str, Any], right: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    return {
        "figure": NAME,
        "title": "All baselines on six cells of four regimes",
        "label": "emulated",
        "provenance": dict(origin),
        "dilation": DILATION,
        "facts": {
            "repeats": scale.repeats,
            "cells at a time": jobs,
            "max_tokens": scale.max_tokens,
            "recording": RECORDING.name,
            "late share or stretch that voids a run": LATE,
            "accuracy": dict(right),
            "context": (
                "sessions hold the regime's context already when a request comes: only its own prompt is computed"
            ),
        },
        "cells": [],
    }


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all: a run may end at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    half.write_text(json.dumps(document, indent=1) + "\n")
    half.replace(path)


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
