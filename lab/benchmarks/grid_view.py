"""What the simulated grids say, in tables: users of each mode over those of the server's own decoding."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from lab.benchmarks.program import table
from lab.testbed.baselines import CENTRALIZED, OPENSLED, RIVALS
from lab.testbed.planner.acceptance import of_traces
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of

Grid = Mapping[str, Any]
Point = Mapping[str, Any]
MODES = ("opensled-device", OPENSLED, "server-sd", "sled-continuous", "sled-static")
HEAD = ("drafts", "accepted", "mode", "best", "median", "worst", "below 1", "best place", "worst place")
GOOD, NEVER = 0.98, 0.95  # share of the best rival that is as good, and below which no place should fall

# Claims of others about fixed or continuous batches: who made it, and when a place bears it out.
CLAIMS: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    ("SLED: fixed batches, 2.8 or more", "sled-static", lambda ratio: ratio >= 2.8),
    ("continuous batches, 2.2 or more", "sled-continuous", lambda ratio: ratio >= 2.2),
    ("WISP: fixed batches, below 1", "sled-static", lambda ratio: ratio < 1),
    ("WISP: fixed batches, 0.52 or less", "sled-static", lambda ratio: ratio <= 0.52),
)


def ratios(grids: Sequence[Grid]) -> str:
    """Users of each mode over those of the server's own decoding; "" without a grid."""
    rows = [row for grid in _sorted(grids) for row in _rows(grid)]
    return "\n".join(table(HEAD, rows)) if rows else ""


def reading(grids: Sequence[Grid]) -> str:
    """How to read `ratios`, and how OpenSLED compares with the best of the others."""
    lines = [
        "All places are in it. A place where the server's own decoding holds no user has no ratio.",
        *(f"With drafts {_label(_source(grid))}: {_standing(grid['points'])}" for grid in _sorted(grids)),
    ]
    return "\n".join(f"- {line}" for line in lines)


def claims(grids: Sequence[Grid]) -> str:
    """At how many places what others claim holds."""
    rows = []
    for grid in _sorted(grids):
        counts = []
        for _, mode, holds in CLAIMS:
            found = [value for value, _ in rated(grid["points"], mode)]
            counts.append(f"{sum(map(holds, found))} of {len(found)}")
        rows.append((_label(_source(grid)), *counts))
    return "\n".join(table(("drafts", *(name for name, _, _ in CLAIMS)), rows))


def law_errors(grid: Grid) -> str:
    """How far the law is from the simulator."""
    rows = [
        (
            name,
            str(each["points"]),
            f"{100 * each['median']:.1f} %",
            f"{100 * each['within_15_percent']:.0f} %",
        )
        for name, each in grid["law_error"].items()
    ]
    return "\n".join(table(("mode", "places where speed decides", "median error", "within 15 %"), rows))


def ratio(point: Point, mode: str) -> float | None:
    """Users over those of plain decoding; None where that holds no user, or the mode was not simulated."""
    counts = point["capacity"]
    plain = counts.get(CENTRALIZED)
    return counts[mode] / plain if plain and mode in counts else None


def rated(points: Sequence[Point], mode: str) -> list[tuple[float, Point]]:
    return [(value, point) for point in points if (value := ratio(point, mode)) is not None]


def summary(points: Sequence[Point]) -> dict[str, dict[str, dict[str, float]]]:
    """Ratios of each mode over all places, and over those of each regime."""
    regimes = dict.fromkeys(point["regime"] for point in points)
    groups = {"all": points} | {
        name: [point for point in points if point["regime"] == name] for name in regimes
    }
    return {name: _summary(group) for name, group in groups.items()}


def _summary(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    found = {}
    for mode in MODES:
        if values := [value for value, _ in rated(points, mode)]:
            spread = {"best": max(values), "median": median(values), "worst": min(values)}
            counts = {"places": len(values), "below 1": sum(value < 1 for value in values)}
            found[mode] = {name: round(value, 3) for name, value in spread.items()} | counts
    return found


def place_name(point: Point) -> str:
    return f"{point['regime']}, {point['device']}, {point['link']}, {point['pace']:g} tokens/s"


def _source(grid: Grid) -> RecordedDrafts:
    return RecordedDrafts(**grid["source"])


def _label(source: RecordedDrafts) -> str:
    return f"{source.name} (recorded)" if source.rate is None else source.name


def _accepted(source: RecordedDrafts) -> float:
    """Share of the first draft tokens that are right; that of every one for made-up drafts."""
    return of_traces(traces_of(source)).first if source.rate is None else source.rate


def _sorted(grids: Sequence[Grid]) -> list[Grid]:
    """Recorded drafts first, then by their acceptance."""
    return sorted(grids, key=lambda grid: (_source(grid).rate is not None, _accepted(_source(grid))))


def _rows(grid: Grid) -> list[tuple[str, ...]]:
    source, rows = _source(grid), []
    for mode in MODES:
        if found := rated(grid["points"], mode):
            best = max(found, key=lambda each: (each[0], each[1]["capacity"][mode]))
            worst = min(found, key=lambda each: (each[0], -each[1]["capacity"][CENTRALIZED]))
            values = best[0], median(value for value, _ in found), worst[0]
            below = f"{sum(value < 1 for value, _ in found)} of {len(found)}"
            where = [place_name(point) for _, point in (best, worst)]
            shown = (f"{value:.2f}" for value in values)
            rows.append((_label(source), f"{_accepted(source):.2f}", mode, *shown, below, *where))
    return rows


def _standing(points: Sequence[Point]) -> str:
    """OpenSLED over the best of RIVALS at each place where one of them holds a user."""
    shares = [
        (counts[OPENSLED] / best, point)
        for point in points
        if (counts := point["capacity"]) and (best := max(counts[name] for name in RIVALS))
    ]
    if not shares:
        return "no mode holds a user anywhere."
    lone = sum(not point["capacity"][CENTRALIZED] and any(point["capacity"].values()) for point in points)
    good = sum(share >= GOOD for share, _ in shares)
    short = sum(share < NEVER for share, _ in shares)
    lowest, place = min(shares, key=lambda each: each[0])
    return (
        f"`{OPENSLED}` holds {GOOD:g} or more of the best other mode at {good} of {len(shares)} places, and less than "
        f"{NEVER:g} at {short}; the least is {lowest:.2f} ({place_name(place)}). At {lone} places only drafts serve "
        "anybody."
    )
