"""What hierarchy.json says: the cells made of its runs, and their tables in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.benchmarks.hierarchy_cells import DEFAULT, HUBS, WORDS
from lab.benchmarks.program import table
from lab.testbed.simulated.hierarchy import (
    BESIDE,
    CENTRALIZED,
    FROM_DEVICE,
    FROM_HUB,
    MIDDLE_BESIDE,
    SMALL_ON_HUB,
    THREE_TIERS,
)

Document = Mapping[str, Any]
Entry = dict[str, Any]

# A cell's contenders, each the best of several chains
CONTENDERS = {
    "centralized": (CENTRALIZED,),
    "device": (FROM_DEVICE,),
    "server": (BESIDE, MIDDLE_BESIDE),
    "hub": (FROM_HUB, SMALL_ON_HUB),
    "three": (THREE_TIERS,),
}
HIERARCHY = ("hub", "three")  # with a relay in them
OTHERS = tuple(name for name in CONTENDERS if name not in HIERARCHY)
WINS = 1.2  # the gain that HSD's authors report over the best single draft (arXiv 2510.19705)
HEAD = (
    *("server, load", "hub", "RTT", "target alone", "device drafts", "draft beside it", "hub drafts"),
    *("three tiers", "relay by default"),
)
RATIOS = {
    "centralized": "best relay / target alone",
    "device": "/ device drafts",
    "server": "/ draft beside it",
    "others": "/ best of the three",
    "default": "relay by default / target alone",
}


def cells_of(runs: Sequence[Entry]) -> list[Entry]:
    """The best chain of each contender in each cell, and the best hierarchy over the others."""
    places = dict.fromkeys((run["target"], run["load"]) for run in runs)
    trips = sorted({run["rtt_ms"] for run in runs if run["rtt_ms"]})
    here = {place: [run for run in runs if (run["target"], run["load"]) == place] for place in places}
    return [
        _cell(here[place], place, hub, trip)
        for place in places
        for hub in HUBS
        for trip in trips
        if any((run["hub"], run["rtt_ms"]) == (hub, trip) for run in here[place])
    ]


def _cell(runs: Sequence[Entry], place: tuple[str, str], hub: str, trip: int) -> Entry:
    here = [run for run in runs if run["rtt_ms"] in (0, trip) and run["hub"] in ("", hub)]
    best: Entry = {}
    for name, paths in CONTENDERS.items():
        words = [WORDS[path] for path in paths]
        best[name] = max((run for run in here if run["chain"] in words), key=_rate, default=None)
    relays = [
        run
        for run in here
        if any(run["chain"] == WORDS[path] for name in HIERARCHY for path in CONTENDERS[name])
    ]
    found = max(relays, key=_rate)
    best["default"] = max((run for run in relays if run["policy"] == DEFAULT), key=_rate, default=None)
    ratios = {name: found["rate"] / best[name]["rate"] for name in OTHERS if best[name]}
    ratios["others"] = min(ratios.values())
    if best["default"]:
        ratios["default"] = best["default"]["rate"] / best["centralized"]["rate"]
    ratios = {name: round(ratio, 3) for name, ratio in ratios.items()}
    where = {"target": place[0], "load": place[1], "hub": hub, "rtt_ms": trip}
    return {**where, "best": best, "relay": found, "ratios": ratios}


def _rate(run: Entry) -> float:
    return float(run["rate"])


def summary(cells: Sequence[Entry], runs: Sequence[Entry]) -> list[Entry]:
    """For docs/hierarchy.md: lowest and highest of each server and load, then of all cells.

    Tokens/s of one user, ratios to the target alone.
    """
    places = dict.fromkeys((cell["target"], cell["load"]) for cell in cells)
    of_places = [_place(cells, *place) for place in places]
    waiting = [run for run in runs if run["policy"] != DEFAULT and run["hub"]]
    alone = {(cell["target"], cell["load"], cell["rtt_ms"]): cell["best"]["centralized"] for cell in cells}
    rates = [_rate(run) / _rate(alone[run["target"], run["load"], run["rtt_ms"]]) for run in waiting]
    counts = {
        name: _count(of) | {"range": _range(of)}
        for name, of in ((name, _ratios(cells, name)) for name in RATIOS)
        if of
    }
    return [*of_places, {"name": "all", **counts, "relay by fcfs": _range(rates)}]


def _place(cells: Sequence[Entry], target: str, load: str) -> Entry:
    here = [cell for cell in cells if (cell["target"], cell["load"]) == (target, load)]
    trips = sorted({cell["rtt_ms"] for cell in here})
    rates = {
        name: _range([_rate(cell["best"][name]) for cell in here if cell["best"][name]])
        for name in ("centralized", "server")
    }
    relays = {
        f"{trip} ms": _range(_ratios([c for c in here if c["rtt_ms"] == trip], "default")) for trip in trips
    }
    best = {name: _range(_ratios(here, name)) for name in ("centralized", "server")}
    return {
        "name": f"{target}, {load}",
        "tokens/s": rates,
        "relay by default": relays,
        "best relay over": best,
    }


def _ratios(cells: Sequence[Entry], name: str) -> list[float]:
    return [cell["ratios"][name] for cell in cells if name in cell["ratios"]]


def _range(values: Sequence[float]) -> list[float]:
    return [round(min(values), 3), round(max(values), 3)] if values else []


def section(document: Document) -> list[str]:
    """For README.md: the counts; `cells_table` has every cell."""
    facts = document["facts"]
    return [
        "## Three tiers (simulated)",
        "",
        f"Tokens/s of one of {facts['users of a hub']} users of one hub, from the first token of an answer to the "
        "last; each the best of several block lengths, models and policies. Every cell: "
        "`python -m lab.benchmarks.hierarchy --show`. "
        f"`{document['provenance']['command']}`",
        "",
        *verdict(document["cells"]),
        "",
    ]


def cells_table(document: Document) -> list[str]:
    """Every cell, in Markdown."""
    return table((*HEAD, *RATIOS.values()), [_row(cell) for cell in document["cells"]])


def _row(cell: Entry) -> tuple[str, ...]:
    rates = [f"{each['rate']:.1f}" if each else "no room" for each in cell["best"].values()]
    ratios = [_ratio(cell["ratios"].get(name)) for name in RATIOS]
    return f"{cell['target']}, {cell['load']}", cell["hub"], f"{cell['rtt_ms']} ms", *rates, *ratios


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"**{value:.2f}**" if value >= WINS else f"{value:.2f}"


def verdict(cells: Sequence[Entry]) -> list[str]:
    """Where the hierarchy wins, and where it loses, in counts."""
    lines = []
    for name, words in RATIOS.items():
        of = _count(_ratios(cells, name))
        lines.append(
            f"- {words}: {of['wins']} of {of['cells']} cells at {WINS:g} or more, {of['losses']} below 1."
        )
    return lines


def _count(ratios: Sequence[float]) -> dict[str, int]:
    return {"cells": len(ratios), "wins": sum(map(_wins, ratios)), "losses": sum(map(_loses, ratios))}


def _wins(ratio: float) -> bool:
    return ratio >= WINS


def _loses(ratio: float) -> bool:
    return ratio < 1
