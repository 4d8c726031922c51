"""What hub_places.json says, in Markdown: ratios of drafts to no drafts, of all places and of each that loses."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.benchmarks.grid_view import GOOD
from lab.benchmarks.program import table

QUANTITIES = ("tokens/s", "slowest tenth", "first ten seconds")
HEAD = ("places", "count", "that draft", *QUANTITIES)
LOST = ("below", "tokens/s without drafts", "tokens that are drafts", *QUANTITIES)
GROUPS = {
    "hub": "",
    "drafts": "",
    "link": "",
    "users": "users: ",
}  # keys of a place, with a word before the value
DRAFTS = 0.01  # share of accepted drafts in its tokens from which on a place drafts; probes alone give less
Entry = dict[str, Any]


def ratios(runs: Sequence[Mapping[str, Any]], quantity: str) -> list[float]:
    """Drafts over no drafts, seed by seed."""
    return [round(run["devices"][quantity] / run["none"][quantity], 4) for run in runs]


def described(places: Mapping[str, Entry]) -> dict[str, list[Entry]]:
    """Places with their ratios, and a summary of all and of each hub, kind of drafts, link and number of users."""
    found = [_place(name, place) for name, place in places.items()]
    groups = {"all": found}
    for key, word in GROUPS.items():
        for place in found:
            groups.setdefault(f"{word}{place[key]}", []).append(place)
    return {"summary": [_summary(name, group) for name, group in groups.items()], "places": found}


def _place(name: str, place: Entry) -> Entry:
    """With the medians over its seeds."""
    runs = place["runs"]
    found = {quantity: median(ratios(runs, quantity)) for quantity in QUANTITIES}
    drafted = median(run["drafted"] for run in runs)
    return {"name": name, **place, "drafted": drafted, "ratios": found, "lowest": min(found.values())}


def _summary(name: str, places: Sequence[Entry]) -> Entry:
    drafting = sum(place["drafted"] >= DRAFTS for place in places)
    found: Entry = {"name": name, "places": len(places), "that draft": drafting}
    for quantity in QUANTITIES:
        each = [place["ratios"][quantity] for place in places]
        spread = {"median": round(median(each), 4), "lowest": min(each), "highest": max(each)}
        found[quantity] = spread | {"below": sum(ratio < GOOD for ratio in each)}
    return found


def section(document: Mapping[str, Any]) -> list[str]:
    """For README.md and the terminal."""
    places = document["places"]
    lost = sorted((each for each in places if each["lowest"] < GOOD), key=lambda each: each["lowest"])
    return [
        f"## {document['title']} ({document['label']})",
        "",
        f"Drafts of the users' devices ({document['facts']['device']}) by policy `goodput` over no drafts, with the "
        "same questions. *Slowest tenth*: the pace that nine of ten users have; with one user, theirs. *First ten "
        "seconds*: until as many tokens are read as a new server writes without drafts in these. Of each the median "
        f"over the places, the lowest to the highest, and how many are below {GOOD:g}. A place drafts where "
        f"{DRAFTS:.0%} of its tokens or more are accepted drafts. `{document['provenance']['command']}`",
        "",
        *table(HEAD, list(map(_group_row, document["summary"]))),
        "",
        f"At {len(lost)} of {len(places)} places one or more of the three are below {GOOD:g}:",
        "",
        *table(LOST, list(map(_place_row, lost))),
        "",
    ]


def _group_row(group: Entry) -> tuple[str, ...]:
    cells = [
        f"{each['median']:.2f}, {each['lowest']:.2f} to {each['highest']:.2f}, {each['below']} below"
        for each in (group[quantity] for quantity in QUANTITIES)
    ]
    return group["name"], str(group["places"]), str(group["that draft"]), *cells


def _place_row(place: Entry) -> tuple[str, ...]:
    plain = median(run["none"]["tokens/s"] for run in place["runs"])
    cells = [_cell(ratios(place["runs"], quantity)) for quantity in QUANTITIES]
    return place["name"], f"{plain:.1f}", f"{place['drafted']:.0%}", *cells


def _cell(each: Sequence[float]) -> str:
    """The median, and of several seeds the spread."""
    spread = f" ({min(each):.3f} to {max(each):.3f})" if len(each) > 1 else ""
    return f"{median(each):.3f}{spread}"
