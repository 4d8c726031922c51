"""Where a hub between device and cloud pays: three hubs, three distances, two targets, two loads.

    python -m lab.benchmarks.hierarchy [--quick] [--targets NAME,...] [--jobs N] [--out FOLDER]

In each cell every chain of device, hub and cloud is simulated with several block lengths and models, over recordings
of three real models of the tiny family. Writes hierarchy.json, and the tables in README.md.
With --show the tables of an earlier run are printed, and nothing is measured.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.benchmarks.hierarchy_cells import (
    BITS,
    DEVICE,
    HOME,
    HUBS,
    LOADS,
    MIDDLES,
    ROUND_TRIPS,
    SMALLS,
    TARGETS,
    USERS,
    Job,
    jobs,
)
from lab.benchmarks.hierarchy_view import cells_of, cells_table, section, summary
from lab.benchmarks.program import (
    FOLDER,
    add_quick_and_out,
    exit_code,
    folder_of,
    mapped,
    names_of,
    parser_of,
    say,
    write_json,
)
from lab.benchmarks.readme import write_readme
from lab.testbed.load.load import Load
from lab.testbed.provenance import provenance
from lab.testbed.simulated.hierarchy import CENTRALIZED, FROM_DEVICE, SINGLE, recordings
from lab.testbed.tiers import agreement

NAME = "hierarchy"
LOAD = Load(warmup=2.0, duration=12.0)
QUICK_LOAD = Load(warmup=1.0, duration=3.0)
USUAL = ("dense-8k", "moe")
PAST_HUBS = (CENTRALIZED, FROM_DEVICE)
TELL_EVERY = 25  # runs


def begun(targets: Sequence[str], load: Load) -> dict[str, Any]:
    """The document before anything is measured."""
    servers = {name: {**vars(TARGETS[name]), "places": TARGETS[name].sessions_that_fit} for name in targets}
    return {
        "figure": NAME,
        "title": "Where a hub between device and cloud pays",
        "label": "simulated",
        "provenance": provenance(),
        "facts": {
            "users of a hub": USERS,
            "hubs": HUBS,
            "models of the hub": [f"{model}, {BITS:g} bits" for model in MIDDLES],
            "device": f"{DEVICE} on {HOME}, drafts of {' or '.join(SMALLS)}",
            "links between hub and server": [f"wan-{trip}" for trip in ROUND_TRIPS],
            "servers": servers,
            "share of the places that others hold": LOADS,
            "window, s": load.duration,
            "recordings": agreement(recordings().tiers.items),
            "policies": "fcfs waits for drafts of the lengths that are named; goodput, the default, decides itself",
        },
        "runs": [],
        "cells": [],
    }


def measure(
    targets: Sequence[str], load: Load, out: Path | None, workers: int, quick: bool = False
) -> dict[str, Any]:
    """The whole document; `out` gets it."""
    document = begun(targets, load)
    hubs, trips = (HUBS[-1:], ROUND_TRIPS[:1]) if quick else (HUBS, ROUND_TRIPS)
    document["runs"] = list(_runs(jobs(tuple(targets), hubs, trips, load), workers))
    document["cells"] = cells_of(document["runs"])
    document["summary"] = summary(document["cells"], document["runs"])
    _keep(document, out)
    return document


def _runs(todo: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    """An entry of each job that found room."""
    for number, (entry, job) in enumerate(zip(mapped(Job.run, todo, workers), todo), 1):
        if number % TELL_EVERY == 0 or number == len(todo):
            say(f"{number} of {len(todo)} simulations")
        if entry is not None:
            yield _where(job) | entry


def _where(job: Job) -> dict[str, Any]:
    """Whose cells a run belongs to: a chain without a link, or without a hub, to those of all."""
    past = job.option.path in PAST_HUBS
    at_server = job.option.path in SINGLE and not past
    return {
        "target": job.place.target,
        "load": job.place.load,
        "others": job.place.server.others,
        "rtt_ms": 0 if at_server else job.place.rtt_ms,
        "hub": "" if at_server or past else job.place.hub,
    }


def _keep(document: dict[str, Any], out: Path | None) -> None:
    if out:
        write_json(out / f"{NAME}.json", document)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(NAME, __doc__)
    add_quick_and_out(parser)
    add = parser.add_argument
    add("--targets", default=",".join(USUAL), help=f"of {', '.join(TARGETS)}; default %(default)s")
    add("--jobs", type=int, default=2, metavar="N", help="simulations at a time; default %(default)s")
    add("--show", type=Path, nargs="?", const=FOLDER / f"{NAME}.json", help="measure nothing: an earlier run")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    return exit_code(lambda: _shown(arguments, folder_of(arguments)))


def _shown(arguments: argparse.Namespace, out: Path | None) -> int:
    if arguments.show:
        document = json.loads(arguments.show.read_text())
    else:
        targets, load = names_of(arguments.targets, TARGETS), QUICK_LOAD if arguments.quick else LOAD
        document = measure(targets, load, out, arguments.jobs, arguments.quick)
        if out:
            print(f"written: {write_readme(out)}")
    print(*section(document), *cells_table(document), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
