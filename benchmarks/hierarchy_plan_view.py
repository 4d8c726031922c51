"""The tables of benchmarks/hierarchy_plan.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.program import table

CHOICES = ("target", "hub", "link", "chosen chain", "predicted", "simulated", "best simulated", "share of it")
ERRORS = ("path", "chains", "median error", "within 10 %", "worst", "read the server's own stream")
ALONE = "target on cloud"
NEAR = 0.1
Row = Mapping[str, Any]


def shown(found: Mapping[str, Any]) -> str:
    """Both tables, Markdown."""
    choices = table(CHOICES, [_choice(each) for each in found["places"]])
    errors = table(ERRORS, [_error(path, rows) for path, rows in _by_path(found["places"])])
    return "\n".join([*choices, "", *errors])


def _choice(place: Mapping[str, Any]) -> tuple[str, ...]:
    chosen, best = place["rows"][0], max(place["rows"], key=lambda row: row["simulated"])
    return (
        place["regime"],
        place["hub"],
        place["link"],
        _chain(chosen),
        f"{chosen['predicted']:.1f}",
        f"{chosen['simulated']:.1f}",
        f"{best['simulated']:.1f}" if best is chosen else f"{best['simulated']:.1f}, {_chain(best)}",
        f"{place['share']:.3f}",
    )


def _chain(row: Row) -> str:
    """Its path, and the lengths in the order in which blocks go up."""
    if not row["lengths"]:
        return row["path"]
    lengths = ", ".join(map(str, reversed(row["lengths"])))
    bound = f", bound {row['bound']:g}" if row["bound"] else ""
    return f"{row['path']} ({lengths}{bound})"


def _by_path(places: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[tuple[Row, float]]]]:
    """The rows of each path, with the rate of the server alone at their place."""
    found: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for place in places:
        alone = next(row["predicted"] for row in place["rows"] if row["path"] == ALONE)
        for row in place["rows"]:
            found[row["path"]].append((row, alone))
    yield from found.items()


def _error(path: str, rows: Sequence[tuple[Row, float]]) -> tuple[str, ...]:
    """Of the chains that the law takes to be faster than the server alone: the others read its own stream."""
    judged = [row["predicted"] / row["simulated"] - 1 for row, alone in rows if row["predicted"] >= alone]
    streams = len(rows) - len(judged)
    if not judged:
        return path, str(len(rows)), "-", "-", "-", str(streams)
    sizes = list(map(abs, judged))
    near = sum(size <= NEAR for size in sizes) / len(sizes)
    worst = max(judged, key=abs)
    told = f"{100 * median(sizes):.1f} %", f"{100 * near:.0f} %", f"{100 * worst:+.0f} %"
    return path, str(len(rows)), *told, str(streams)
