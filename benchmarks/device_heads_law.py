"""The law of a head's block on a device (hw_profiles/device_head.py) against blocks that are measured on one core here.

    python -m benchmarks.device_heads_law --head FOLDER [--head FOLDER ...] [--target draft-135m] [--out FOLDER]

FOLDER is what `opensled export-head` wrote for the target whose shape --target names (draft-135m is SmolLM2's). In
turns, on one thread of ONNX Runtime: how fast a core reads a large float32 matrix for one row, how fast it computes
with many rows, and a block of each head. Least times count: other work only adds to them. Writes
device_heads_law.json, and the table in README.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device_heads_real_view import law_section
from benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, write_json
from benchmarks.readme import write_readme
from benchmarks.real_contenders import DEVICE_CORE
from edge_client.checks.head_probe import block_times, known_id
from edge_client.drafters.head import HeadFactory
from hw_profiles import catalog
from hw_profiles.device_head import DeviceHeadCost
from hw_profiles.draft_head import HeadProfile
from hw_profiles.profiles import HeadSpeed, Quantity
from opensled.errors import UsageError
from opensled_testbed.provenance import provenance

NAME = "device_heads_law"
SIDE, ROWS = 4096, 512  # of the matrix, which no cache holds; of the product that is bound by arithmetic
REPEATS = 9


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    add = parser.add_argument
    add("--head", action="append", default=[], metavar="FOLDER", help="a head for devices; may be repeated")
    add("--target", default="draft-135m", help="profile of its target's shape; default %(default)s")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    command = f"python -m benchmarks.{NAME} {' '.join(sys.argv[1:] if words is None else words)}".rstrip()
    return exit_code(lambda: _measured(arguments, command, folder_of(arguments)))


def _measured(arguments: Namespace, command: str, out: Path | None) -> int:
    if not arguments.head:
        raise UsageError("name heads for devices with --head; opensled export-head writes them")
    os.sched_setaffinity(0, {DEVICE_CORE})  # numpy would take all of them
    heads = {folder: HeadFactory(folder, 1) for folder in arguments.head}
    work: dict[str, Callable[[], float]] = {"read": _read_s, "compute": _compute_s}
    work |= {folder: _block_of(factory, Path(folder)) for folder, factory in heads.items()}
    repeats = 2 if arguments.quick else REPEATS
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            times[name].append(run())
    least = {name: min(each) for name, each in times.items()}
    bandwidth, flops = 4 * SIDE * SIDE / least["read"] / 1e9, 2 * SIDE * SIDE * ROWS / least["compute"] / 1e9
    speed = HeadSpeed(*(Quantity(each, each, each, "measured here") for each in (bandwidth, flops)))
    entries = [
        _entry(factory, speed, arguments.target, least[folder], statistics.median(times[folder]))
        for folder, factory in heads.items()
    ]
    document = {
        "figure": NAME,
        "title": "The law of a head's block, on one core",
        "label": "real",
        "provenance": provenance(command),
        "core": {"read, GB/s": round(bandwidth, 2), "compute, GFLOP/s": round(flops, 1)},
        "heads": entries,
    }
    if out:
        write_json(out / f"{NAME}.json", document)
        print(f"written: {write_readme(out)}")
    print(*law_section(document), sep="\n")
    return 0


def _entry(
    factory: HeadFactory, speed: HeadSpeed, target: str, least: float, median: float
) -> dict[str, Any]:
    about = factory.about
    head = HeadProfile.usual(about.kind, catalog.target(target))
    cost = DeviceHeadCost(head, speed)
    law = cost.block_s + cost.rows_s(3)
    return {
        "head": factory.name,
        "MB": round(cost.weight_bytes / 1e6, 1),
        "MFLOP": round(head.draft_operations / 1e6),
        "least_ms": round(1000 * least, 2),
        "median_ms": round(1000 * median, 2),
        "law_ms": round(1000 * law, 2),
        "share": round(law / least, 2),  # of the rates of a core that a head reaches
    }


def _block_of(factory: HeadFactory, folder: Path) -> Callable[[], float]:
    token = known_id(folder)
    return lambda: min(block_times(factory, token))


_MATRIX = np.ones((SIDE, SIDE), np.float32)


def _read_s() -> float:
    return _least(lambda: _MATRIX @ np.ones(SIDE, np.float32))


def _compute_s() -> float:
    return _least(lambda: _MATRIX @ np.ones((SIDE, ROWS), np.float32), 2)


def _least(work: Callable[[], Any], count: int = 5) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
