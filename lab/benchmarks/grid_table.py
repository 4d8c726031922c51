"""Grids of several drafts side by side: users over those of the server's own decoding, and which mode wins where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from hw_profiles.speculation import uniform_tokens
from lab.benchmarks.grid_document import WHOLE, source_of
from lab.benchmarks.grid_shares import place_name, rated, ratio
from lab.benchmarks.program import table
from lab.testbed.baselines import CENTRALIZED, OPENSLED
from lab.testbed.planner.acceptance import of_traces
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.planner.task_acceptance import TASKS

Grid = Mapping[str, Any]
Point = dict[str, Any]
MODES = (OPENSLED, "sled-continuous", "sled-static", "server-sd")
HEAD = ("drafts", "accepted", "mode", "best", "median", "worst", "best place", "worst place")
TASK_HEAD = (
    "`--acceptance`",
    "at each position",
    "tokens a round of 4 drafted",
    "drafts on",
    "published, rounded by us",
)
WINNERS = {
    "server": "server decodes",
    "beside": "draft beside it",
    "devices": "devices draft",
    "none": "none",
}


def by_drafts(grids: Sequence[Grid]) -> str:
    """Both tables, from short grids; "" without a short grid."""
    found = _short(grids)
    short = {source.name: points for source, points in found.items()}
    return "\n\n".join((ratios(grids), _reading(short), "\n".join(_winners(short)))) if short else ""


def ratios(grids: Sequence[Grid]) -> str:
    """Users of each mode over those of the server's own decoding, from short grids; "" without one."""
    rows = [row for source, points in _short(grids).items() for row in _rows(source, points)]
    return "\n".join(table(HEAD, rows)) if rows else ""


def _short(grids: Sequence[Grid]) -> dict[RecordedDrafts, list[Point]]:
    """Points of the short grids; the whole grid counts at their places, unless its drafts have a short one too."""
    short = {source_of(grid): list(grid["points"]) for grid in grids if grid["figure"] != WHOLE}
    places = {_place(point) for points in short.values() for point in points}
    for grid in grids if short else ():
        short.setdefault(source_of(grid), [point for point in grid["points"] if _place(point) in places])
    return {source: short[source] for source in _sorted(short)}


def task_rows() -> list[tuple[str, ...]]:
    """Acceptance by task, under TASK_HEAD."""
    return [
        (f"`{name}`", f"{task.rate:.2f}", f"{uniform_tokens(task.rate, 4):.2f}", task.words, task.source)
        for name, task in sorted(TASKS.items(), key=lambda each: each[1].rate)
    ]


def _sorted(sources: Iterable[RecordedDrafts]) -> list[RecordedDrafts]:
    """Recorded drafts first, then by their acceptance."""
    return sorted(sources, key=lambda source: (source.rate is not None, accepted(source)))


def _place(point: Point) -> tuple[Any, ...]:
    return tuple(point[key] for key in ("regime", "pace", "link", "device"))


def accepted(source: RecordedDrafts) -> float:
    """Share of the first draft tokens that are right; that of every one for made-up drafts."""
    return of_traces(traces_of(source)).first if source.rate is None else source.rate


def _rows(source: RecordedDrafts, points: Sequence[Point]) -> list[tuple[str, ...]]:
    label = f"{source.name} (recorded)" if source.rate is None else source.name
    rows = []
    for mode in MODES:
        found = rated(points, mode)
        if not found:
            continue
        best = max(found, key=lambda each: (each[0], each[1]["capacity"][mode]))
        worst = min(found, key=lambda each: (each[0], -each[1]["capacity"][CENTRALIZED]))
        values = [best[0], median(value for value, _ in found), worst[0]]
        where = [place_name(point) for _, point in (best, worst)]
        rows.append((label, f"{accepted(source):.2f}", mode, *(f"{value:.2f}" for value in values), *where))
    return rows


def _reading(short: Mapping[str, Sequence[Point]]) -> str:
    """How to read the tables."""
    lone = {
        name: [
            point for point in points if ratio(point, OPENSLED) is None and any(point["capacity"].values())
        ]
        for name, points in sorted(short.items())
    }
    counts = ", ".join(f"{name} {len(points)}" for name, points in lone.items())
    return (
        "A ratio compares the users of a mode with those of the server's own decoding at the same place. At some "
        "places the server's own decoding serves no user, but another mode does. They have no ratio; their number is: "
        f"{counts}. The next table counts the places where a mode holds the most users. Of equal modes the simplest "
        "counts. `opensled` is left out, because it should equal the best of the others."
    )


def _winners(grids: Mapping[str, Sequence[Point]]) -> list[str]:
    keys = dict.fromkeys((point["regime"], point["pace"]) for points in grids.values() for point in points)
    rows = [
        (regime, f"{pace:g}", *(_counted(points, regime, pace) for points in grids.values()))
        for regime, pace in keys
    ]
    return table(("regime", "tokens/s", *grids), rows)


def _counted(points: Sequence[Point], regime: str, pace: float) -> str:
    there = [point for point in points if (point["regime"], point["pace"]) == (regime, pace)]
    counts = Counter(winner(point["capacity"]) for point in there)
    return ", ".join(f"{WINNERS[name]} {counts[name]}" for name in WINNERS if counts[name]) or "left out"


def winner(capacity: Mapping[str, int]) -> str:
    """A key of WINNERS; equals count for the simplest: the server's own decoding, then a draft beside it."""
    devices = max(capacity["sled-static"], capacity["sled-continuous"])
    most = max(capacity[CENTRALIZED], capacity["server-sd"], devices)
    if not most:
        return "none"
    if capacity[CENTRALIZED] == most:
        return "server"
    return "beside" if capacity["server-sd"] == most else "devices"
