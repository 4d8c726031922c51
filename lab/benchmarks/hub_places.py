"""One to 32 users of hubs that people own: drafts of their devices, by policy `goodput`, against no drafts.

    python -m lab.benchmarks.hub_places [--places PATTERN] [--quick] [--jobs N] [--out FOLDER]
    python -m lab.benchmarks.hub_places --show [FILE]

Each place is a hub with its target, a kind of drafts, a link and a number of users, who ask again as soon as an answer
ends; all devices are MacBooks M4. The places where drafts lose most are simulated with further seeds. Writes
hub_places.json, a picture of it and the table in README.md. What is done is kept in a .part file after each simulation:
a run that was ended goes on from there.
"""

import argparse
import json
import signal
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, product
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.hub_places_plot import write_plot
from lab.benchmarks.hub_places_view import QUANTITIES, described, ratios, section
from lab.benchmarks.program import (
    FOLDER,
    add_quick_and_out,
    exit_code,
    folder_of,
    mapped,
    parser_of,
    say,
    write_json,
)
from lab.benchmarks.readme import write_readme
from lab.testbed.baselines import BASELINES, CENTRALIZED, LONGEST, OPENSLED_DEVICES
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load
from lab.testbed.load.records import RunResult
from lab.testbed.load.slo import SHARE, paces
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.provenance import provenance
from lab.testbed.simulator import simulate
from opensled.core.errors import UsageError

NAME = "hub_places"
TARGETS = {
    "spark-70b": ("dgx-spark", "dense-70b"),
    "spark-27b": ("dgx-spark", "dense-27b"),
    "spark-moe120": ("dgx-spark", "moe-120b-a5b"),
    "m2u-8b": ("mac-m2-ultra", "dense-8b"),
    "m2u-moe30": ("mac-m2-ultra", "moe-30b-a3b"),
    "strix-moe30": ("strix-halo", "moe-30b-a3b"),
    "strix-70b": ("strix-halo", "dense-70b"),
    "thor-8b": ("agx-thor", "dense-8b"),
}
HUBS = {
    name: Server(accelerator=hub, target=target, weight_bits=4.0) for name, (hub, target) in TARGETS.items()
}
DRAFTS = {"recorded": "", "chat": "chat", "code": "code"}  # acceptances
LINKS = ("wifi-good", "wan-80")
USERS = (1, 2, 4, 8, 16, 32)
DEVICE = "macbook-m4"
PACE = 10.0  # tokens/s that users ask for
FIRST_S = 10.0  # a new server's first seconds, in which its users come one after another
WINDOW_S, QUICK_S = 60.0, 5.0
SEEDS, WORST = 3, 30  # of so many places, if all are simulated; others have one seed
MODES = {"none": CENTRALIZED, "devices": OPENSLED_DEVICES}

Run = dict[str, Any]


class Place(NamedTuple):
    """One point of the figure."""

    hub: str
    drafts: str
    link: str
    users: int

    @property
    def name(self) -> str:
        return " ".join(map(str, self))

    def fleet(self) -> Fleet:
        group = Group(self.users, DEVICE, self.link, draft_length=LONGEST, pace=PACE)
        return Fleet(HUBS[self.hub], (group,))


PLACES = tuple(Place(*each) for each in product(HUBS, DRAFTS, LINKS, USERS))


class Unit(NamedTuple):
    """A place to be simulated with a seed, in all modes."""

    place: Place
    seed: int
    window_s: float

    def run(self) -> Run:
        load = Load(warmup=FIRST_S, duration=self.window_s, seed=self.seed)
        traces, fleet = traces_of(RecordedDrafts(acceptance=DRAFTS[self.place.drafts])), self.place.fleet()
        results = {mode: simulate(BASELINES[name](fleet), traces, load) for mode, name in MODES.items()}
        first = max(1, _read(results["none"], FIRST_S))
        found: Run = {mode: _rates(result, first) for mode, result in results.items()}
        return {"seed": self.seed, "drafted": _drafted(results["devices"])} | found


def _rates(result: RunResult, first: int) -> dict[str, float]:
    """Tokens/s by QUANTITIES."""
    each = sorted(paces(result).values(), reverse=True)
    slowest = each[ceil(SHARE * len(each)) - 1]
    rates = result.server.tokens / (result.end - result.start), slowest, first / _read_at(result, first)
    return {name: float(f"{rate:.5g}") for name, rate in zip(QUANTITIES, rates)}


def _arrivals(result: RunResult) -> list[tuple[float, int]]:
    """Of all users, in order."""
    return sorted((each.time, each.tokens) for record in result.requests for each in record.arrivals)


def _read(result: RunResult, until: float) -> int:
    """Tokens that all users have read until then."""
    return sum(tokens for time, tokens in _arrivals(result) if time <= until)


def _read_at(result: RunResult, count: int) -> float:
    """Seconds until all users have read `count` tokens: of a few tokens a rate is steadier than their number."""
    arrivals = _arrivals(result)
    read = accumulate(tokens for _, tokens in arrivals)
    return next((time for (time, _), total in zip(arrivals, read) if total >= count), result.end)


def _drafted(result: RunResult) -> float:
    """Share of the tokens that are accepted drafts."""
    rounds = [each for record in result.requests for each in record.rounds if each.answered >= result.start]
    return round(sum(each.accepted for each in rounds) / max(1, result.server.tokens), 4)


# -- the document -----------------------------------------------------------------------------------------------


def begun(window_s: float) -> dict[str, Any]:
    """The document before anything is measured."""
    return {
        "figure": NAME,
        "title": "Users of hubs that people own",
        "label": "simulated",
        "provenance": provenance(),
        "facts": {
            "window, s": window_s,
            "device": DEVICE,
            "hubs": {name: vars(server) for name, server in HUBS.items()},
            "slowest tenth": f"the pace that {SHARE:.0%} of the users have; with one user, theirs",
            "first ten seconds": f"tokens/s until as many are read as without drafts in the first {FIRST_S:g} s of a "
            "new server, in which its users come one after another",
            "seeds": f"{SEEDS} at the {WORST} places where tokens/s or the slowest tenth lose most, else 1; a ratio "
            "is the median over them",
            "selection": "every combination of hubs, drafts, links and numbers of users",
        },
        "runs": {},
    }


def measure(places: Sequence[Place], window_s: float, out: Path | None, jobs: int) -> dict[str, Any]:
    """The whole document, of these places alone; `out` gets it."""
    part = out / f"{NAME}.part" if out else None
    document = _begun(part, window_s)
    runs: dict[str, list[Run]] = document["runs"]
    _fill(document, [Unit(place, 0, window_s) for place in places], part, jobs)
    worst = sorted(places, key=lambda place: lowest(runs[place.name][0]))
    further = product(worst[: ceil(WORST * len(places) / len(PLACES))], range(1, SEEDS))
    _fill(document, [Unit(place, seed, window_s) for place, seed in further], part, jobs)
    found = described({place.name: {**place._asdict(), "runs": runs[place.name]} for place in places})
    document = {key: value for key, value in document.items() if key != "runs"} | found
    if out and part:
        write_json(out / f"{NAME}.json", document)
        part.unlink()
    return document


def lowest(run: Run) -> float:
    """The lower ratio of the quantities that are of many tokens."""
    return min(ratio for name in QUANTITIES[:2] for ratio in ratios([run], name))


def _begun(part: Path | None, window_s: float) -> dict[str, Any]:
    """A new document, or what a run that was ended has left; raises UsageError for a file that is none."""
    new = begun(window_s)
    if part is None or not part.is_file():
        return new
    say(f"goes on with {part}")
    try:
        found: dict[str, Any] = json.loads(part.read_text("utf-8"))
        assert found["facts"] == new["facts"], "its facts are others"
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(f"{part} cannot be gone on with ({error}); remove it to measure anew") from None
    found.setdefault("pieces", []).append(new["provenance"])
    return found


def _fill(document: dict[str, Any], units: Sequence[Unit], part: Path | None, jobs: int) -> None:
    """Add the runs of `units` that the document lacks."""
    runs: dict[str, list[Run]] = document["runs"]
    todo = [unit for unit in units if unit.seed >= len(runs.get(unit.place.name, ()))]
    for number, (run, unit) in enumerate(zip(mapped(Unit.run, todo, jobs), todo), 1):
        runs.setdefault(unit.place.name, []).append(run)
        if part:
            write_json(part, document)
        say(f"{number} of {len(todo)}: {unit.place.name}, seed {unit.seed}: {lowest(run):.3f}")


# -- the program ------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    add_quick_and_out(parser)
    add = parser.add_argument
    add("--places", default="", metavar="PATTERN", help=f"as {PLACES[0].name!r}, with * and ?; default all")
    add("--jobs", type=int, default=2, metavar="N", help="simulations at a time; default %(default)s")
    add("--show", type=Path, nargs="?", const=FOLDER / f"{NAME}.json", help="measure nothing: an earlier run")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: _shown(parser.parse_args(words)))


def _shown(arguments: argparse.Namespace) -> int:
    document = json.loads(arguments.show.read_text()) if arguments.show else _measured(arguments)
    print(*section(document), sep="\n")
    return 0


def _measured(arguments: argparse.Namespace) -> Mapping[str, Any]:
    # A part of the places takes the place of the whole figure only where that is asked for
    out, places = arguments.out if arguments.places else folder_of(arguments), chosen(arguments.places)
    if arguments.quick:
        document = measure(places[:2], QUICK_S, out, 1)
    else:
        document = measure(places, WINDOW_S, out, arguments.jobs)
    if out:
        write_plot(document, out / f"{NAME}.svg")
        print(f"written: {write_readme(out)}")
    return document


def chosen(pattern: str) -> Sequence[Place]:
    """Places whose names match; raises UsageError where none does."""
    found = [place for place in PLACES if fnmatchcase(place.name, pattern or "*")]
    if not found:
        raise UsageError(f"--places {pattern!r} matches no place; they are called as {PLACES[0].name!r}")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
