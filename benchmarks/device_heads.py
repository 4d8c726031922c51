"""Where a draft head on the device pays: emulated devices on links, before a hub and before a server.

    python -m benchmarks.device_heads [--servers hub,dense-8k] [--devices pi-5,...] [--links lte,...] [--users 1,16]
        [--jobs N] [--emulate] [--quick] [--out FOLDER]

Each cell compares no drafts, a draft model on the device, the same head beside the target, and the head on the device:
every one with the best of its lengths, the head in float32 as `opensled export-head` writes it and, by arithmetic, in
few bits. What drafters propose was recorded with SmolLM2, all texts mixed (emulation/head_recorder.py), or drawn with
the acceptance of published pairs. The bytes of the hidden states are those of the emulated target. Simulated;
--emulate runs a few of the cells with real servers and streams, through which hidden states of that size really
travel, and with them says how far the simulation is to be trusted. What is done is kept in a .part file: a run that
was ended goes on where it was. Writes device_heads.json, and the tables in README.md; --show prints an earlier run's.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.device_heads_cells import (
    ALIKE,
    DEFAULT,
    DEVICES,
    DRAFT_CHANCE,
    FEW_BITS,
    FIXED,
    HEAD_CHANCE,
    LINKS,
    LOAD,
    LOADS,
    PAIR,
    RECORDED,
    SERVERS,
    USERS,
    Job,
    Place,
    jobs,
    places,
    recorded,
    sources,
)
from benchmarks.device_heads_emulated import emulate
from benchmarks.device_heads_view import compared, section
from benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    mapped,
    names_of,
    parser_of,
    say,
    write_json,
)
from benchmarks.readme import write_readme
from hw_profiles import catalog
from hw_profiles.device_head import FLOAT32, DeviceHeadCost, row_bytes, states_of
from hw_profiles.draft_head import HeadProfile
from opensled_testbed.cells import REGIMES
from opensled_testbed.emulation.recorder import table
from opensled_testbed.provenance import provenance
from opensled_testbed.recordings import head_drafter

NAME = "device_heads"
NEAR = 0.95  # of the best of the others: such cells are simulated again, where policy and devices decide themselves


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    add = parser.add_argument
    add("--servers", default=",".join(SERVERS), metavar="NAME,...", help="default %(default)s")
    add("--devices", default=",".join(DEVICES), metavar="NAME,...", help="default %(default)s")
    add("--links", default=",".join(LINKS), metavar="NAME,...", help="default %(default)s")
    add("--users", default=",".join(map(str, USERS)), metavar="N,...", help="default %(default)s")
    add("--jobs", type=int, default=2, metavar="N", help="simulations at a time; default %(default)s")
    add("--emulate", action="store_true", help="some cells with real servers and streams as well (minutes)")
    add("--show", type=Path, metavar="JSON", help="measure nothing: the tables of an earlier run")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    command = f"python -m benchmarks.{NAME} {' '.join(sys.argv[1:] if words is None else words)}".rstrip()
    return exit_code(lambda: _shown(arguments, command, folder_of(arguments)))


def _shown(arguments: Namespace, command: str, out: Path | None) -> int:
    if arguments.show:
        document = json.loads(arguments.show.read_text())
    else:
        document = _measured(arguments, command, out)
        if out:
            write_json(out / f"{NAME}.json", document)
            print(f"written: {write_readme(out)}")
    print(*section(document), sep="\n")
    return 0


def _measured(arguments: Namespace, command: str, out: Path | None) -> dict[str, Any]:
    chosen, quick = _places(arguments), arguments.quick
    kept = Kept(out / f"{NAME}.part" if out else None)
    every = [(place, source) for place in chosen for source in sources()]
    runs = list(kept.all(jobs(every, FIXED, quick), arguments.jobs))
    runs += kept.all(jobs(near(runs, chosen), DEFAULT, quick), arguments.jobs)
    return {
        "figure": NAME,
        "title": "A draft head on the device",
        "label": "simulated / emulated",
        "provenance": provenance(command),
        "facts": facts(),
        "places": [asdict(place) for place in chosen],
        "runs": runs,
        "emulated": emulate(kept, arguments.quick) if arguments.emulate else [],
    }


def _places(arguments: Namespace) -> list[Place]:
    if arguments.quick:
        return places(SERVERS[:1], DEVICES[-1:], LINKS[:1], USERS[:1])
    return places(
        names_of(arguments.servers, REGIMES),
        names_of(arguments.devices, catalog.names("devices")),
        names_of(arguments.links, catalog.names("links")),
        [int(each) for each in names_of(arguments.users, [str(number) for number in range(1, 65)])],
    )


class Kept:
    """What is done already, one JSON line each."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None = nothing is kept."""
        self._path = path
        lines = path.read_text().splitlines() if path and path.is_file() else []
        self._done = {_name(each["key"]): each["entry"] for each in map(json.loads, lines)}

    def all(self, todo: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
        """Entries of all jobs, those that are lacking first."""
        lacking = [job for job in todo if _name(job.key) not in self._done]
        for number, (job, entry) in enumerate(zip(lacking, mapped(Job.run, lacking, workers)), 1):
            self.add(job.key, entry)
            if number % 20 == 0 or number == len(lacking):
                say(f"{number} of {len(lacking)} simulations")
        for job in todo:
            yield self._done[_name(job.key)]

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        return self._done.get(_name(key))

    def add(self, key: dict[str, Any], entry: dict[str, Any]) -> None:
        self._done[_name(key)] = entry
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "entry": entry}) + "\n")


def _name(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def near(runs: Sequence[dict[str, Any]], chosen: Sequence[Place]) -> list[tuple[Place, str]]:
    """Places where a head on the device comes near all others, or beats them, and the source of its acceptance."""
    found = compared([asdict(place) for place in chosen], runs)
    return [(Place(**row.place), row.source) for row in found if row.times >= NEAR]


def facts() -> dict[str, Any]:
    """What everything rests on."""
    return {
        "pair": PAIR,
        "window, s": {"1 user": LOADS[1].duration, "more": LOAD.duration},
        "servers": {name: asdict(REGIMES[name]) for name in SERVERS},
        "acceptance": {drafter: table(recorded(drafter)).splitlines() for drafter in _drafters()},
        "alike": {"draft model": DRAFT_CHANCE, "head": HEAD_CHANCE, "source": ALIKE},
        "block_ms": [
            _block(server, device, kind) for server in SERVERS for device in DEVICES for kind in _kinds()
        ],
    }


def _kinds() -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for kinds in sources().values() for kind in kinds))


def _drafters() -> list[str]:
    return ["llamacpp", *(head_drafter(kind) for kind in sources()[RECORDED])]


def _block(server: str, device: str, kind: str) -> dict[str, Any]:
    """What a block of a head of the server's target takes on a device, and what its hidden states are on the link."""
    target, profile = REGIMES[server].cost.target, catalog.device(device)
    head = HeadProfile.usual(kind, target)
    costs = {bits: DeviceHeadCost.of(profile, head, bits) for bits in (FLOAT32, FEW_BITS)}
    return {
        "server": server,
        "device": device,
        "kind": kind,
        "draft token": round(1000 * profile.draft("0.5b").draft_s(1), 1),
        "float32": round(1000 * costs[FLOAT32].block_s, 1),
        "few bits": round(1000 * costs[FEW_BITS].block_s, 1),
        "MB, float32": round(costs[FLOAT32].weight_bytes / 1e6),
        "bytes a row": row_bytes(states_of(kind), target.hidden_size),
        "bytes a prompt": costs[FLOAT32].prompt_bytes,
    }


if __name__ == "__main__":
    sys.exit(main())
