"""OpenSLED over the best of the other baselines, from the first second on and in steady state, simulated.

    python -m lab.benchmarks.phases [--pair NAME | --acceptance A] [--regimes R,...] [--links L,...] [--devices D,...]
                                [--users N,...] [--pace R] [--seeds N] [--jobs N] [--quick] [--out FOLDER]

Every run begins with a server that has seen nothing, and all users ask in its first moment. `whole` counts the tokens
that reach users from then on, so that every cold start counts; `first` those of the first FIRST_S seconds, `steady`
those after them. A fixed draft length is the best of LENGTHS at that place, by `whole` and the first seed, one at a
time for each baseline; of PipeSD's thresholds the best of the three pairs that the law puts first. Made-up drafts have
no PipeSD: they are all sure. The best of the others is the one with the highest mean; ratios are paired by seed, with
a 95 % interval. Writes phases-NAME.json, NAME being the pair or the acceptance.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from lab.benchmarks.drafts_option import add_drafts, drafts_of
from lab.benchmarks.grid_place import LENGTHS, OF_SERVER, OURS, PAIRS_TRIED, SERVERS, Place, asked_of, tuned
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
from lab.testbed.baselines import CENTRALIZED, LONGEST, OPENSLED, PIPESD, RIVALS
from lab.testbed.load.interval import interval
from lab.testbed.load.load import Load
from lab.testbed.load.records import RunResult
from lab.testbed.planner import mode_map
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.setting import of_fleet
from lab.testbed.planner.thresholds import pairs
from lab.testbed.provenance import provenance
from lab.testbed.recordings import DEFAULT_PAIR
from lab.testbed.simulator import simulate
from lab.testbed.tuning import Tuning
from opensled.core.errors import UsageError

FIRST_S, STEADY_S = 5.0, 15.0  # of each run: cold, and after that
PHASES = ("whole", "first", "steady")
HEAD = ("place", "users", "phase", "best other", "its tokens/s", *OURS)

Rates = dict[str, dict[str, list[float]]]  # by phase and baseline: tokens/s with each seed


class LoadedPlace(NamedTuple):
    """A place of the grid with so many users."""

    place: Place
    users: int

    def __str__(self) -> str:
        place = self.place
        return f"{place.regime}, {place.device}, {place.link}"


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    return exit_code(lambda: _measure(arguments, sys.argv[1:] if words is None else words))


def _arguments(words: Sequence[str] | None) -> Namespace:
    parser = parser_of("phases", __doc__)
    add_quick_and_out(parser)
    add_drafts(parser, DEFAULT_PAIR)
    add = parser.add_argument
    add("--regimes", default=",".join(SERVERS), help="default %(default)s")
    add("--links", default="wifi-good,wan-80", help="default %(default)s")
    add("--devices", default="pi-5,orin-nano-super,laptop-cpu", help=f"of {', '.join(mode_map.DEVICES)}")
    add("--users", default="1,8,32", help="default %(default)s")
    add("--pace", type=float, default=10.0, help="tokens/s that users ask for; default %(default)s")
    add("--seeds", type=int, default=5, metavar="N", help="default %(default)s")
    add("--jobs", type=int, default=1, metavar="N", help="processes; default %(default)s")
    return parser.parse_args(words)


def _measure(arguments: Namespace, words: Sequence[str]) -> int:
    places, seeds = _places(arguments), 2 if arguments.quick else arguments.seeds
    source = drafts_of(arguments)
    document: dict[str, Any] = {
        "figure": "phases",
        "title": "OpenSLED over the best of the others: cold, and in steady state",
        "label": "simulated",
        "drafts": source.words,
        "facts": {"first_s": FIRST_S, "steady_s": STEADY_S, "seeds": seeds, "pace": arguments.pace},
        "provenance": provenance(f"python -m lab.benchmarks.phases {' '.join(words)}".rstrip()),
        "places": [],
    }
    out = folder_of(arguments)
    for found in mapped(partial(_entry, seeds), places, arguments.jobs):
        document["places"].append(found)
        say(" | ".join(f"{phase} {_told(found, phase)}" for phase in PHASES) + f"  {found['place']}")
        if out:
            write_json(out / f"phases-{source.name}.json", document)
    rows = [row for found in document["places"] for row in _rows(found)]
    print("\n".join(table(HEAD, rows)))
    return 0


def _places(arguments: Namespace) -> list[LoadedPlace]:
    source = drafts_of(arguments)
    regimes = arguments.regimes.split(",")
    if unknown := [name for name in regimes if name not in SERVERS]:
        raise UsageError(f"no regime {unknown[0]!r}; choose from {', '.join(SERVERS)}")
    axes = (regimes, arguments.links.split(","), arguments.devices.split(","), arguments.users.split(","))
    found = [
        LoadedPlace(Place(regime, link, arguments.pace, source, device), int(users))
        for regime, link, device, users in product(*axes)
    ]
    return found[:1] if arguments.quick else found


# -- one place ------------------------------------------------------------------------------------------------------


def _entry(seeds: int, loaded: LoadedPlace) -> dict[str, Any]:
    """What is written of a place."""
    rivals = rivals_of(loaded.place.source)
    tunings = {name: _tuning(loaded, name) for name in rivals}
    runs = {name: _runs(loaded, name, tuning, seeds) for name, tuning in tunings.items()}
    runs |= {name: _runs(loaded, name, Tuning(LONGEST), seeds) for name in OURS}
    rates = {
        phase: {name: [each[phase] for each in found] for name, found in runs.items()} for phase in PHASES
    }
    return {
        "place": str(loaded),
        "users": loaded.users,
        "draft_length": {
            n: each.draft_length for n, each in tunings.items() if n not in (CENTRALIZED, PIPESD)
        },
        "thresholds": {n: each[1:] for n, each in tunings.items() if each.newest},
        "tokens_per_s": {phase: {n: round(fmean(v), 2) for n, v in rates[phase].items()} for phase in PHASES},
        "ratios": {phase: ratios(rates[phase], rivals) for phase in PHASES},
    }


def rivals_of(source: RecordedDrafts) -> Sequence[str]:
    """The baselines that `opensled` is compared with, for these drafts."""
    return RIVALS if source.acceptance else (*RIVALS, PIPESD)


def _tuning(loaded: LoadedPlace, name: str) -> Tuning:
    """The best fixed draft length, or the best thresholds, of a baseline that has them."""
    return max(_tried(loaded.place, name), key=lambda tuning: _runs(loaded, name, tuning, 1)[0]["whole"])


def _tried(place: Place, name: str) -> Sequence[Tuning]:
    if name == CENTRALIZED:
        return (Tuning(0),)
    if name == PIPESD:
        setting = of_fleet(place.fleet(1), asked_of(place.source)[1])
        return [each.tuning for each in pairs(setting, place.source, place.pace)[:PAIRS_TRIED]]
    return [Tuning(length) for length in LENGTHS]


def _runs(loaded: LoadedPlace, name: str, tuning: Tuning, seeds: int) -> list[dict[str, float]]:
    if name in OF_SERVER:  # measured once for all devices
        loaded = loaded._replace(place=replace(loaded.place, device=""))
    return [_run(loaded, name, tuning, seed) for seed in range(seeds)]


@cache
def _run(loaded: LoadedPlace, name: str, tuning: Tuning, seed: int) -> dict[str, float]:
    traces, work = asked_of(loaded.place.source)
    setting = of_fleet(loaded.place.fleet(1), work)
    fleet = tuned(loaded.place, name, setting, tuning).of_users(loaded.users)
    return rates_of(simulate(fleet, traces, Load(warmup=0.0, duration=FIRST_S + STEADY_S, seed=seed)))


def rates_of(result: RunResult) -> dict[str, float]:
    """Tokens/s that reach users in each of PHASES."""
    arrivals = [arrival for request in result.requests for arrival in request.arrivals]
    first = sum(arrival.tokens for arrival in arrivals if arrival.time < FIRST_S)
    after = sum(arrival.tokens for arrival in arrivals if FIRST_S <= arrival.time < result.end)
    steady_s = result.end - FIRST_S
    return {"whole": (first + after) / result.end, "first": first / FIRST_S, "steady": after / steady_s}


def ratios(rates: Mapping[str, Sequence[float]], rivals: Sequence[str]) -> dict[str, Any]:
    """Of each of OURS to the best rival, seed by seed: mean and 95 % interval; {} if no rival writes anything."""
    best = max(rivals, key=lambda name: fmean(rates[name]))
    if not all(rates[best]):
        return {}
    found = {name: interval([one / other for one, other in zip(rates[name], rates[best])]) for name in OURS}
    return {"best": best, **{name: [round(value, 4) for value in each] for name, each in found.items()}}


# -- shown ----------------------------------------------------------------------------------------------------------


def _told(found: Mapping[str, Any], phase: str) -> str:
    known = found["ratios"][phase]
    return f"{known[OPENSLED][0]:.3f} of {known['best']}" if known else "no tokens"


def _rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for phase in PHASES:
        known = found["ratios"][phase]
        if known:
            rate = f"{found['tokens_per_s'][phase][known['best']]:.1f}"
            shown = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in (known[n] for n in OURS)]
            rows.append((found["place"], str(found["users"]), phase, known["best"], rate, *shown))
    return rows


if __name__ == "__main__":
    sys.exit(main())
