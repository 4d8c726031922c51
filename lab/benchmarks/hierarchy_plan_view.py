"""The tables of lab/benchmarks/hierarchy_plan.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from lab.benchmarks.program import table

CHOICES = ("target", "hub", "link", "chosen chain", "predicted", "simulated", "best simulated", "share of it")
ERRORS = (
    "path",
    "chains",
    "median error",
    "within 10 %",
    "worst",
    "read the server's stream",
    "of it at most",
)
ALONE = "target on cloud"
BESIDE = ("draft on cloud", "middle on cloud")
NEAR, STREAM = 0.1, 0.97
Row = Mapping[str, Any]


class Judged(NamedTuple):
    """A chain, and what the server gives by itself at its place."""

    row: Row
    alone: Row

    @property
    def times(self) -> float:
        """Of what the server gives by itself, as simulated."""
        return float(self.row["simulated"] / self.alone["simulated"])

    @property
    def streams(self) -> bool:
        """Whether its user reads the server's own stream: the law takes it to be slower, and it is not."""
        return bool(self.row["predicted"] < self.alone["predicted"] and self.times > STREAM)

    @property
    def error(self) -> float:
        """Of the prediction."""
        return float(self.row["predicted"] / self.row["simulated"] - 1)


def shown(places: Sequence[Mapping[str, Any]]) -> str:
    """All tables, Markdown."""
    judged: dict[str, dict[str, Judged]] = defaultdict(dict)
    for each in places:
        alone = next(row for row in each["rows"] if row["path"] == ALONE)
        for row in each["rows"]:
            judged[row["path"]][f"{each['regime']} {row}"] = Judged(
                row, alone
            )  # some are the same for all hubs
    return "\n".join(
        [
            *table(CHOICES, [_choice(each, each["rows"]) for each in places]),
            "\nWithout a draft beside the target:\n",
            *table(CHOICES, [_choice(each, list(_without(each["rows"]))) for each in places]),
            "",
            *table(ERRORS, [_error(path, list(chains.values())) for path, chains in judged.items()]),
        ]
    )


def _without(rows: Sequence[Row]) -> Iterator[Row]:
    """Those on whose path the server has no draft."""
    return (row for row in rows if not row["path"].startswith(BESIDE))


def _choice(place: Mapping[str, Any], rows: Sequence[Row]) -> tuple[str, ...]:
    """`rows`: the fastest first by the law, which the planner takes."""
    chosen, best = rows[0], max(rows, key=lambda row: row["simulated"])
    return (
        *(place[name] for name in ("regime", "hub", "link")),
        _chain(chosen),
        f"{chosen['predicted']:.1f}",
        f"{chosen['simulated']:.1f}",
        f"{best['simulated']:.1f}" if best is chosen else f"{best['simulated']:.1f}, {_chain(best)}",
        f"{chosen['simulated'] / best['simulated']:.3f}",
    )


def _chain(row: Row) -> str:
    """Its path, and the lengths in the order in which blocks go up."""
    if not row["lengths"]:
        return str(row["path"])
    lengths = ", ".join(map(str, reversed(row["lengths"])))
    bound = f", bound {row['bound']:g}" if row["bound"] else ""
    return f"{row['path']} ({lengths}{bound})"


def _error(path: str, chains: Sequence[Judged]) -> tuple[str, ...]:
    """How far the law is off where a chain has the drive, and how many have not."""
    errors = [each.error for each in chains if not each.streams]
    streams = [each.times for each in chains if each.streams]
    told = ("-", "-", "-")
    if errors:
        sizes = list(map(abs, errors))
        near = sum(size <= NEAR for size in sizes) / len(sizes)
        told = f"{100 * median(sizes):.1f} %", f"{100 * near:.0f} %", f"{100 * max(errors, key=abs):+.0f} %"
    return path, str(len(chains)), *told, str(len(streams)), f"{max(streams):.2f}" if streams else "-"
