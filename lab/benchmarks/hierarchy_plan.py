"""The planner of chains against the simulator: the chain it chooses beside all others, and what it predicts of each.

    python -m lab.benchmarks.hierarchy_plan [--quick] [--regimes NAME,...] [--out FOLDER]
    python -m lab.benchmarks.hierarchy_plan --show

Hubs, links between hub and server, and targets: `dense-8k` and `moe` with 16 other users in every step; `slow`, whose
step takes a third of a second; and `deep`, the same with an 8B model on the hub and fast devices on a cable. On every
path from the target down the law names the best lengths of the blocks. These are simulated, and so are half and double
of each length, on paths that may be the best. Models write what was recorded with the tiny family. Each regime is
written to docs/benchmarks/hierarchy_plan-NAME.json; the tables of all that are there go to standard output.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice, product
from typing import Any, NamedTuple

from hw_profiles import catalog
from hw_profiles.hierarchy import Chain, Spec, chain_of
from hw_profiles.speculation import LONGEST
from lab.benchmarks.hierarchy_plan_view import shown
from lab.benchmarks.program import (
    FOLDER,
    add_quick_and_out,
    exit_code,
    folder_of,
    names_of,
    parser_of,
    say,
    write_json,
)
from lab.testbed.cells import REGIMES as USUAL
from lab.testbed.fleet import Group, Hub, Server
from lab.testbed.load.load import Load, asked_by
from lab.testbed.planner.hierarchy_drafts import mean_answer, of_recordings
from lab.testbed.planner.hierarchy_plan import along, paths
from lab.testbed.planner.hierarchy_site import CLOUD, HUB, Path, Site, TierDrafts, words_of
from lab.testbed.planner.trip import mean_s
from lab.testbed.provenance import provenance
from lab.testbed.simulated.hierarchy import Recordings, Tiers, rate, recordings, simulate_chain

NAME = "hierarchy_plan"
HUBS = ("orin-nano-super", "agx-orin", "strix-halo")
LINKS = ("wan-20", "wan-60", "wan-150")
DEVICE = Group(1, "orin-nano-super", "wifi-good", draft="0.5b")
ASKED = 200  # answers that the law is told of: about as many as a simulated user reads, in the same order
HOPELESS = 0.75  # of the fastest path by the law: below, no other lengths are tried
QUICK = Load(warmup=1.0, duration=4.0)


class Regime(NamedTuple):
    """A server, how long its users are watched, and what is before it."""

    server: Server
    load: Load
    hubs: tuple[str, ...] = HUBS
    middle: str = "draft-3b"
    bits: float = 4.0  # of the middle model's weights
    device: Group = DEVICE


SLOW = Server(accelerator="strix-halo", target="dense-70b", weight_bits=8)
LONG, SHORT = Load(warmup=2.0, duration=600.0), Load(warmup=2.0, duration=300.0)
REGIMES = {
    "dense-8k": Regime(replace(USUAL["dense-8k"], others=16), Load(warmup=2.0, duration=120.0)),
    "moe": Regime(replace(USUAL["moe"], others=16), Load(warmup=1.0, duration=60.0)),
    "slow": Regime(SLOW, LONG),
    "deep": Regime(SLOW, SHORT, HUBS[1:], "dense-8b", 8.0, Group(1, "agx-thor", "ethernet", draft="0.5b")),
}


class Lengths(NamedTuple):
    """Tokens of the blocks of a chain, from the target down."""

    lengths: tuple[int, ...]
    bound: float  # of the hub's


@dataclass(frozen=True, eq=False)
class Simulations:
    """What was simulated, once each: a path past the hub is the same for all hubs."""

    recorded: Recordings
    drafts: TierDrafts
    answer: int  # mean tokens after the first one
    quick: bool

    def rate(self, regime: str, tiers: Tiers, path: Path, of: Lengths) -> tuple[float, float]:
        """Tokens/s of the user, and positions that the target computes for each token."""
        if not any(place == HUB for _, place in path):
            tiers = replace(tiers, hub=replace(tiers.hub, accelerator=REGIMES[regime].hubs[0]))
        if all(place == CLOUD for _, place in path):
            tiers = replace(tiers, hub=replace(tiers.hub, link=LINKS[0]))
        return _simulated(self, regime, tiers, path, of)


@cache
def _simulated(by: Simulations, regime: str, tiers: Tiers, path: Path, of: Lengths) -> tuple[float, float]:
    load = QUICK if by.quick else REGIMES[regime].load
    found = simulate_chain(tiers, path, of.lengths, by.recorded, of.bound, load)
    return rate(found), found.server.positions / max(1, found.server.tokens)


def tiers_of(regime: str, hub: str, link: str) -> Tiers:
    """One place of the grid."""
    asked = REGIMES[regime]
    middle = Hub(
        accelerator=hub, target=asked.middle, weight_bits=asked.bits, context=asked.server.context, link=link
    )
    return Tiers(asked.server, middle, asked.device)


def site_of(tiers: Tiers, simulations: Simulations) -> Site:
    """The same for the law."""
    return Site(
        device=catalog.device(tiers.device.device),
        draft=tiers.device.draft,
        link=catalog.link(tiers.device.link),
        hub=tiers.hub.cost,
        hub_rtt_s=mean_s(catalog.link(tiers.hub.link)),
        server=tiers.server.cost,
        context=tiers.server.context,
        drafts=simulations.drafts,
        longest=LONGEST,
        answer=simulations.answer,
        others=tiers.server.others,
    )


def around(chain: Chain, alone: bool) -> Iterator[Lengths]:
    """The lengths that the law names, and unless these `alone`, those where one of them is half or double."""
    lengths = tuple(edge.length for edge in chain.edges)
    bound = chain.edges[0].bound if chain.edges else 0.0
    yield Lengths(lengths, bound)
    for place, factor in product(range(0 if alone else len(lengths)), (0.5, 2)):
        changed = min(LONGEST, round(lengths[place] * factor))
        if changed not in (0, lengths[place]):
            yield Lengths((*lengths[:place], changed, *lengths[place + 1 :]), bound)


def predicted(site: Site, path: Path, of: Lengths) -> float:
    """What the law says of given lengths, tokens/s."""
    hierarchy = site.hierarchy
    by_place = {(each.model, each.place): each for each in hierarchy.candidates}
    chosen = [by_place[each] for each in path]
    edges = zip(chosen, chosen[1:], [*chosen[2:], None], of.lengths, (of.bound, *[0.0] * len(path)))
    return site.rate(chain_of(hierarchy, [Spec(*edge) for edge in edges]))


def rows(regime: str, tiers: Tiers, simulations: Simulations) -> Iterator[dict[str, Any]]:
    """Every path with every length that is tried."""
    site = site_of(tiers, simulations)
    best = {path: along(site, path) for path in paths(site)}
    hopeless = HOPELESS * max(map(site.rate, best.values()))
    for path, chain in best.items():
        for each in around(chain, simulations.quick or site.rate(chain) < hopeless):
            told, (seen, positions) = predicted(site, path, each), simulations.rate(regime, tiers, path, each)
            yield {
                "path": words_of(path),
                "lengths": [*each.lengths],
                "bound": each.bound,
                "predicted": round(told, 3),
                "simulated": round(seen, 3),
                "positions": round(positions, 3),
            }


def place(regime: str, hub: str, link: str, simulations: Simulations) -> dict[str, Any]:
    """One place of the grid: its rows, the fastest first by the law; the planner takes the first."""
    found = sorted(rows(regime, tiers_of(regime, hub, link), simulations), key=lambda row: -row["predicted"])
    best = max(found, key=lambda row: row["simulated"])
    share = found[0]["simulated"] / best["simulated"]
    say(f"{regime}, {hub}, {link}: {len(found)} chains, the chosen one has {share:.3f} of the best")
    return {"regime": regime, "hub": hub, "link": link, "share": round(share, 4), "rows": found}


def measured(regime: str, simulations: Simulations) -> dict[str, Any]:
    """All places of a regime."""
    origin = provenance(f"python -m lab.benchmarks.{NAME} --regimes {regime}")
    hubs, few = REGIMES[regime].hubs, 1 if simulations.quick else None
    return {
        "figure": NAME,
        "title": "The planner of chains against the simulator",
        "label": "simulated",
        "setting": asdict(tiers_of(regime, hubs[0], LINKS[0])),
        "answer": simulations.answer,
        "places": [place(regime, *where, simulations) for where in product(hubs[:few], LINKS[:few])],
        "provenance": origin,
    }


def run(arguments: Namespace) -> int:
    """Measure, write and show."""
    regimes = names_of(arguments.regimes, REGIMES)
    if arguments.show:
        files = [FOLDER / f"{NAME}-{regime}.json" for regime in regimes]
        read = [json.loads(file.read_text("utf-8")) for file in files if file.is_file()]
        print(shown([each for document in read for each in document["places"]]))
        return 0
    recorded, places = recordings(), []
    asked = replace(recorded.tiers, items=tuple(islice(asked_by(0, recorded.tiers.items, Load()), ASKED)))
    simulations = Simulations(recorded, of_recordings(asked), round(mean_answer(asked)), arguments.quick)
    for regime in regimes:
        found = measured(regime, simulations)
        places += found["places"]
        if (folder := folder_of(arguments)) is not None:
            write_json(folder / f"{NAME}-{regime}.json", found)
    print(shown(places))
    return 0


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    parser.add_argument("--regimes", default=",".join(REGIMES), help=f"of {', '.join(REGIMES)}; default: all")
    parser.add_argument("--show", action="store_true", help="show what was measured, and measure nothing")
    add_quick_and_out(parser)
    return exit_code(lambda: run(parser.parse_args(words)))


if __name__ == "__main__":
    sys.exit(main())
