"""Published claims, asked of the simulated grid: at how many of its places each of them holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opensled_testbed.baselines import CENTRALIZED

# The claims that the grid is asked about: who made it, of which baseline, which ratio, and when a place bears it out.
CLAIMS: tuple[tuple[str, str, str, Callable[[float], bool]], ...] = (
    ("SLED's 2.2 times the throughput", "sled-static", "at least 2.2", lambda ratio: ratio >= 2.2),
    ("SLED's 2.8 times the capacity", "sled-static", "at least 2.8", lambda ratio: ratio >= 2.8),
    ("the same, batched continuously", "sled-continuous", "at least 2.2", lambda ratio: ratio >= 2.2),
    ("WISP's finding that SLED loses", "sled-static", "below 1", lambda ratio: ratio < 1),
    ("WISP's 0.52 or worse", "sled-static", "at most 0.52", lambda ratio: ratio <= 0.52),
    ("drafting devices lose, batched continuously", "sled-continuous", "below 1", lambda ratio: ratio < 1),
)
CLAIM_HEAD = ("claim", "baseline", "ratio", "places", "regimes and paces")

Point = Mapping[str, Any]


def ratio(point: Point, baseline: str) -> float | None:
    """Users over those of plain decoding; None where that serves no user, or the baseline was not simulated."""
    counts = point["capacity"]
    plain = counts.get(CENTRALIZED)
    return counts[baseline] / plain if plain and baseline in counts else None


def rated(points: Sequence[Point], baseline: str) -> list[tuple[float, Point]]:
    return [(value, point) for point in points if (value := ratio(point, baseline)) is not None]


def claim_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Of each claim: at how many places it holds, and in which regimes; under CLAIM_HEAD."""
    rows: list[tuple[str, ...]] = []
    for name, baseline, wanted, holds in CLAIMS:
        found = rated(points, baseline)
        good = [point for value, point in found if holds(value)]
        rows.append((name, baseline, wanted, f"{len(good)} of {len(found)}", _where(good)))
    return rows


def _where(points: Sequence[Point]) -> str:
    """The regimes that have such places, with the paces at which they have them."""
    paces: dict[str, set[float]] = {}
    for point in points:
        paces.setdefault(point["regime"], set()).add(point["pace"])
    found = [
        f"{regime} at {', '.join(f'{pace:g}' for pace in sorted(some))}" for regime, some in paces.items()
    ]
    return "; ".join(found) or "nowhere"
