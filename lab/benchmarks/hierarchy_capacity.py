"""How many users a server holds whose devices read, draft, or sit behind hubs: all of them are simulated one by one.

    python -m lab.benchmarks.hierarchy_capacity [--quick] [--jobs N] [--out FOLDER]

Policy `goodput`, which is the default, knows the pace that users want. Writes hierarchy_capacity.json after each chain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.hierarchy_cells import DEFAULT, SMALLS, USERS, WORDS, Option, Place, figures
from lab.benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    mapped,
    parser_of,
    say,
    table,
    write_json,
)
from lab.testbed.fleet import Fleet
from lab.testbed.load.load import Load
from lab.testbed.load.slo import Slo, holds
from lab.testbed.planner.capacity_search import largest
from lab.testbed.provenance import provenance
from lab.testbed.simulated.hierarchy import (
    BESIDE,
    CENTRALIZED,
    FROM_DEVICE,
    FROM_HUB,
    fleet_of,
    recordings,
    traces_of,
)
from lab.testbed.simulator import simulate

NAME = "hierarchy_capacity"
PLACES = (
    Place("dense-8k", "light"),
    Place("moe", "light"),
)  # whose hub is the fastest, and the nearest to the server
PACES = {"dense-8k": 30.0, "moe": 20.0}  # tokens/s that are asked for
LOAD = Load(warmup=4.0, duration=8.0)
OPTIONS = (
    Option(CENTRALIZED, policy=DEFAULT),
    Option(FROM_DEVICE, (8,), small=SMALLS[0], policy=DEFAULT),
    Option(BESIDE, (8,), small=SMALLS[0], policy=DEFAULT),
    Option(FROM_HUB, (8,), policy=DEFAULT),
)


class Capacity(NamedTuple):
    """One chain for all users of one cloud, a hub for each USERS of them."""

    place: Place
    option: Option
    pace: float  # tokens/s promised

    def fleet(self, users: int) -> Fleet:
        """So many of them."""
        option = self.option
        fleet = fleet_of(self.place.tiers(option), option.path, option.lengths, option.bound, option.policy)
        count = max(1, users // USERS)
        hub = replace(fleet.hub, count=count) if fleet.hub else None
        return replace(fleet, hub=hub).of_users(users).wanting(self.pace)

    def run(self) -> dict[str, Any]:
        """The largest number of users at which nearly all keep their pace, and the figures of a full server."""
        traces = traces_of(self.option.path, recordings())
        fits = self.fleet(1).server.sessions_that_fit // USERS * USERS
        full = simulate(self.fleet(fits), traces, LOAD)

        def held(several: int) -> bool:
            users = USERS * several
            result = full if users == fits else simulate(self.fleet(users), traces, LOAD)
            return holds(result, Slo(self.pace))

        most = fits // USERS
        users = USERS * (most if held(most) else largest(held, most // 2, most - 1))
        server = full.server
        return {
            **vars(self.place),
            **self.option.as_json(),
            "pace": self.pace,
            "users": users,
            "places": fits,
            "full": {
                **figures(full, fits),
                "tokens_per_s": round(server.tokens / LOAD.duration, 1),
                "busy_share": round(server.busy_s / LOAD.duration, 3),
                "server_ms_per_token": round(1000 * server.busy_s / max(1, server.tokens), 3),
            },
        }


def capacities(place: Place, pace: float) -> list[Capacity]:
    """Every chain there."""
    return [Capacity(place, option, pace) for option in OPTIONS]


def section(document: Any) -> list[str]:
    """For README.md and docs/hierarchy.md; nothing in it is written by hand."""
    return [
        "## Users held with hubs (simulated)",
        "",
        f"All users of one server alike, two at each hub, {WORDS[FROM_HUB]} with 1.5B on {PLACES[0].hub}, "
        f"{PLACES[0].rtt_ms} ms from the server. `{document['provenance']['command']}`",
        "",
        *table(HEAD, [_row(entry) for entry in document["entries"]]),
        "",
    ]


HEAD = (
    *("server", "chain", "pace", "users held", "places", "tokens/s when full", "of one user"),
    *("server's ms per token", "positions/token"),
)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    full = entry["full"]
    return (
        entry["target"],
        entry["chain"],
        f"{entry['pace']:g}",
        f"{entry['users']}",
        f"{entry['places']}",
        f"{full['tokens_per_s']:.0f}",
        f"{full['rate']:.1f}",
        f"{full['server_ms_per_token']:.2f}",
        f"{full['positions_per_token']:.2f}",
    )


def measure(todo: Sequence[Capacity], out: Path | None, workers: int) -> dict[str, Any]:
    """The whole document; `out` has it after each chain."""
    document: dict[str, Any] = {
        "figure": NAME,
        "title": "Users held with hubs",
        "label": "simulated",
        "provenance": provenance(),
        "facts": {"window, s": LOAD.duration, "policy": DEFAULT, "users of a hub": USERS},
        "entries": [],
    }
    for entry in mapped(Capacity.run, todo, workers):
        document["entries"].append(entry)
        say(f"{entry['target']}: {entry['chain']}: {entry['users']} of {entry['places']} users")
        if out:
            write_json(out / f"{NAME}.json", document)
    return document


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    add_quick_and_out(parser)
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="simulations at a time; default %(default)s"
    )
    arguments = parser.parse_args(words)
    todo = [each for place in PLACES for each in capacities(place, PACES[place.target])]
    chosen = todo[:1] if arguments.quick else todo

    def work() -> int:
        print(*section(measure(chosen, folder_of(arguments), arguments.jobs)), sep="\n")
        return 0

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
