"""The simulated grid: capacity and throughput of every baseline over regimes, links, devices and paces.

    python -m benchmarks.grid [--quick] [--acceptance RATE] [--out FOLDER] [--resume]
    python -m benchmarks.grid --only opensled --merge [--spot-check N]

Capacity is the largest number of users of whom 90 % read at their pace, by bisection in the simulator; beside it stands
the law's word for it. Throughput is compared at the load of the best baseline, and at half of it. All baselines meet
the same users with the same requests. Plain decoding and a draft beside the server use nothing of the device, so their
capacities are simulated once for all devices. Writes grid.json, and map.json by the law alone. With --acceptance drafts
are made up, of which that share is right, as of a draft model that was adapted to its target; writes grid-adapted.json.

With --merge what the file already says stays, but for the baselines of --only; --spot-check measures some of that again
and fails where it differs. What is done is kept in a .part file after each place: --resume goes on from there.
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

from benchmarks.findings import findings
from benchmarks.grid_document import (
    ADAPTED,
    ALL,
    QUICK,
    Axes,
    begun,
    law_error,
    name_of,
    read,
    without,
)
from benchmarks.grid_fill import fill, place_of
from benchmarks.grid_place import OF_SERVER, answers
from benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, write_json
from opensled_testbed.planner import mode_map
from opensled_testbed.planner.setting import default_work
from opensled_testbed.provenance import provenance


def measure(axes: Axes, acceptance: float = 0.0) -> dict[str, Any]:
    """The whole grid, on grid_fill.WORKERS processes."""
    return _filled(begun(axes, acceptance), acceptance, None)


def _filled(document: dict[str, Any], acceptance: float, part: Path | None) -> dict[str, Any]:
    """`document` with all that it lacked; on its way it is kept in `part`."""
    fill(document, acceptance, lambda: write_json(part, document) if part else None)
    return {**document, "law_error": law_error(document["points"])}


def map_figure(quick: bool) -> dict[str, Any]:
    """The map's points, by the law."""
    servers = mode_map.panels(mode_map.CONTEXTS[:1]) if quick else mode_map.panels()
    work = default_work()
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
    add("--acceptance", type=float, default=0.0, metavar="RATE", help="of drafts that are made up")
    add("--merge", action="store_true", help="keep what the file there says, but for --only")
    add(
        "--only", default="", metavar="NAME,...", help=f"with --merge, of {', '.join(ALL)}: measure them anew"
    )
    add("--spot-check", type=int, default=0, metavar="N", help="values that --merge kept to measure again")
    add("--resume", action="store_true", help="go on with the .part file of a run that was ended")
    arguments = parser.parse_args(words)
    arguments.only = [name for name in arguments.only.split(",") if name]
    _check(parser, arguments)
    return arguments


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.acceptance < 1:
        parser.error(f"--acceptance {arguments.acceptance:g}: from 0 to below 1 is needed")
    unknown = [name for name in arguments.only if name not in ALL]
    if unknown:
        parser.error(f"--only {unknown[0]}: choose from {', '.join(ALL)}")
    if not arguments.merge and (arguments.only or arguments.spot_check):
        parser.error("--only and --spot-check belong to --merge")
    if (arguments.merge or arguments.resume) and arguments.quick and not arguments.out:
        parser.error("--merge and --resume need a folder: --out FOLDER")


def _flags(arguments: argparse.Namespace) -> str:
    words = [" --quick"] if arguments.quick else []
    words += [f" --acceptance {arguments.acceptance:g}"] if arguments.acceptance else []
    words += [f" --only {','.join(arguments.only)}"] if arguments.only else []
    return "".join([*words, " --merge"] if arguments.merge else words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: _measured(arguments, folder_of(arguments)))


def _measured(arguments: argparse.Namespace, out: Path | None) -> int:
    rate = arguments.acceptance
    origin = provenance(f"python -m benchmarks.grid{_flags(arguments)}")
    if out and not rate and not arguments.merge:
        write_json(out / "map.json", {**map_figure(arguments.quick), "provenance": origin})
        print(f"written: {out / 'map.json'}")
    target = out / f"{name_of(rate)}.json" if out else None
    part = target.with_suffix(".part") if target else None
    document = _filled(_start(arguments, target, part, origin), rate, part)
    differing = 0
    if arguments.spot_check:
        kept = [name for name in ALL if name not in arguments.only]
        differing = spot_check(document, rate, arguments.spot_check, kept)
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
    axes = QUICK if arguments.quick else ADAPTED if arguments.acceptance else Axes()
    return {**begun(axes, arguments.acceptance), "provenance": origin}


def spot_check(document: dict[str, Any], acceptance: float, count: int, kept: Sequence[str]) -> int:
    """Measure `count` capacities of `kept` again; how many of them differ.

    The choice is random but always the same. The result is printed and added to the document's facts.
    """
    known = [
        (replace(place, device="") if name in OF_SERVER else place, name, users)
        for point in document["points"]
        for place in (place_of(point, acceptance),)
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
