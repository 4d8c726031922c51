"""The simulated grid: capacity and throughput of every baseline over regimes, links, devices and paces.

    python -m lab.benchmarks.grid [--pair NAME] [--acceptance A] [--short] [--quick] [--out FOLDER] [--resume]
        [--jobs N]
    python -m lab.benchmarks.grid --only opensled --merge [--spot-check N]
    python -m lab.benchmarks.grid --only pipesd,opensled-device,opensled-server --merge

Capacity is the largest number of users of whom 90 % read at their pace, by bisection in the simulator; beside it stands
the law's word for it. Throughput is compared at the load of the best baseline, and at half of it. All baselines meet
the same users with the same requests. Plain decoding and a draft beside the server use nothing of the device, so their
capacities are simulated once for all devices. Writes grid.json, and map.json by the law alone.

Drafts are those recorded with --pair. With --acceptance, a number or the name of a task, drafts are made up, of which
that share is right. A grid with --short or --acceptance asks for capacity alone, on two links with three devices, and
only at places that the law leaves open: where decoding alone does not fill the memory, and some mode serves a user. It
writes grid-NAME.json, NAME being the pair or the acceptance. `python -m lab.benchmarks.grid_set` makes all of those.

With --merge what the file already says stays, but for the baselines of --only; pipesd and the parts of opensled come
where they are named there.
--spot-check measures some of that again and fails where it differs. What is done is kept in a .part file after each
place: --resume goes on from there.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.benchmarks.drafts_option import add_drafts, drafts_of
from lab.benchmarks.findings import findings
from lab.benchmarks.grid_document import (
    ALL,
    NAMED,
    QUICK,
    SHORT,
    WHOLE,
    Axes,
    begun,
    law_error,
    name_of,
    read,
    source_of,
    without,
)
from lab.benchmarks.grid_fill import WORKERS, fill, place_of
from lab.benchmarks.grid_place import OF_SERVER, answers
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, write_json
from lab.testbed.baselines import PIPESD
from lab.testbed.planner import mode_map
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.setting import work_of
from lab.testbed.provenance import provenance
from lab.testbed.recordings import BUNDLED_PAIR
from opensled.core.errors import UsageError


def measure(axes: Axes, source: RecordedDrafts) -> dict[str, Any]:
    """The whole grid, on WORKERS processes."""
    return _filled(begun(axes, source), None, WORKERS)


def _filled(document: dict[str, Any], part: Path | None, jobs: int) -> dict[str, Any]:
    """`document` with all that it lacked; on its way it is kept in `part`."""

    def save() -> None:
        if part:
            write_json(part, document)

    fill(document, source_of(document), save, jobs, throughput=document["figure"] == WHOLE)
    return {**document, "law_error": law_error(document["points"])}


def map_figure(quick: bool, source: RecordedDrafts) -> dict[str, Any]:
    """The map's points, by the law."""
    servers = mode_map.panels(mode_map.CONTEXTS[:1]) if quick else mode_map.panels()
    work = work_of(source)
    return {
        "figure": "map",
        "title": "Best mode and gain by the law",
        "label": "derived",
        "acceptance": work.acceptance.source,
        "points": [point.as_json() for point in mode_map.points(servers, work)],
    }


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("grid", __doc__)
    add_quick_and_out(parser)
    add = parser.add_argument
    add_drafts(parser, BUNDLED_PAIR)
    add(
        "--short",
        action="store_true",
        help="capacity alone, where the law leaves it open; as with --acceptance",
    )
    add("--jobs", type=int, default=WORKERS, metavar="N", help="processes; default %(default)s")
    add("--merge", action="store_true", help="keep what the file there says, but for --only")
    add(
        "--only",
        default="",
        metavar="NAME,...",
        help=f"with --merge, of {', '.join(NAMED)}: measure them anew",
    )
    add("--spot-check", type=int, default=0, metavar="N", help="values that --merge kept to measure again")
    add("--resume", action="store_true", help="go on with the .part file of a run that was ended")
    arguments = parser.parse_args(words)
    arguments.only = [name for name in arguments.only.split(",") if name]
    arguments.short = arguments.short or bool(arguments.acceptance)
    _check(parser, arguments)
    return arguments


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    try:
        arguments.source = drafts_of(arguments)
    except UsageError as error:
        parser.error(str(error))
    unknown = [name for name in arguments.only if name not in NAMED]
    if unknown:
        parser.error(f"--only {unknown[0]}: choose from {', '.join(NAMED)}")
    if PIPESD in arguments.only and arguments.acceptance:
        parser.error(
            f"--only {PIPESD}: drafts that are made up are all sure, so that no threshold ends a block"
        )
    if not arguments.merge and (arguments.only or arguments.spot_check):
        parser.error("--only and --spot-check belong to --merge")
    if (arguments.merge or arguments.resume) and arguments.quick and not arguments.out:
        parser.error("--merge and --resume need a folder: --out FOLDER")


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: _measured(arguments, folder_of(arguments)))


def _measured(arguments: argparse.Namespace, out: Path | None) -> int:
    source: RecordedDrafts = arguments.source
    origin = provenance()
    if out and not arguments.short and not arguments.merge:
        write_json(out / "map.json", {**map_figure(arguments.quick, source), "provenance": origin})
        print(f"written: {out / 'map.json'}")
    target = out / f"{name_of(source, arguments.short)}.json" if out else None
    part = target.with_suffix(".part") if target else None
    document = _filled(_start(arguments, target, part, origin), part, arguments.jobs)
    differing = 0
    if arguments.spot_check:
        kept = [name for name in ALL if name not in arguments.only]
        differing = spot_check(document, arguments.spot_check, kept)
    if target and part:
        write_json(target, document)
        part.unlink(missing_ok=True)
        print(f"written: {target}")
    print(findings(document))
    return int(differing > 0)


def _start(
    arguments: argparse.Namespace, target: Path | None, part: Path | None, origin: dict[str, Any]
) -> dict[str, Any]:
    """What is known before anything is measured."""
    if arguments.resume and part:
        return read(part)
    if arguments.merge and target:
        document = without(read(target), arguments.only)
        names = arguments.only or ["what was missing"]
        document["additions"] = [*document.get("additions", ()), {"baselines": names, "provenance": origin}]
        return document
    axes = QUICK if arguments.quick else SHORT if arguments.short else Axes()
    return {**begun(axes, arguments.source, arguments.short), "provenance": origin}


def spot_check(document: dict[str, Any], count: int, kept: Sequence[str]) -> int:
    """Measure `count` capacities of `kept` again; how many of them differ.

    The choice is random but always the same. The result is printed and added to the document's facts.
    """
    known = [
        (replace(place, device="") if name in OF_SERVER else place, name, users)
        for point in document["points"]
        for place in (place_of(point, source_of(document)),)
        for name, users in point["capacity"].items()
        if name in kept
    ]
    chosen = random.Random(0).sample(known, min(count, len(known)))
    differing = [each for each in chosen if answers(each[0], (each[1],))[0].users != each[2]]
    for place, name, users in differing:
        say(f"differs: {name} at {place}, was {users}")
    found = {"values": len(chosen), "differing": len(differing), "baselines": list(kept)}
    document["facts"]["spot_check"] = found
    say(f"spot check: {len(differing)} of {len(chosen)} earlier capacities differ")
    return len(differing)


if __name__ == "__main__":
    sys.exit(main())
