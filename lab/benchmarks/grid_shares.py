"""Whether OpenSLED is ever worse than the best of the others on the simulated grid.

A place is one regime, device, link and pace. Asked at each of them: users held, and throughput at the load of the best
rival and at half of it, as a share of the best of RIVALS. Where a rival holds no user there is no share of capacity.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lab.testbed.baselines import CENTRALIZED, OPENSLED, RIVALS

GOOD, ENOUGH = 0.98, 0.95  # share of the best rival, and share of all places that must have it
NEVER = 0.95  # below which no place may fall
PREDICTED, AHEAD = 2.0, 1.8  # gain over centralized by the law, and what must come of it

Point = Mapping[str, Any]


def place_name(point: Point) -> str:
    return f"{point['regime']}, {point['device']}, {point['link']}, {point['pace']:g} tokens/s"


class Share(NamedTuple):
    """OpenSLED at one place and in one respect, over the best of its rivals there."""

    point: Point
    respect: str  # "users", or "tokens/s with N users"
    share: float
    rival: str

    def __str__(self) -> str:
        return f"{self.share:.3f} of {self.rival}: {place_name(self.point)} ({self.respect})"


class PlaceGain(NamedTuple):
    """OpenSLED over centralized serving where the law says that drafting gains much."""

    point: Point
    law: float
    simulated: float

    def __str__(self) -> str:
        return f"{self.simulated:.2f} where the law says {self.law:.2f}: {place_name(self.point)}"


class GridVerdict(NamedTuple):
    """What a grid says."""

    shares: list[Share]
    gains: list[PlaceGain]

    @property
    def good(self) -> float:
        """Share of all that are as good as the best rival."""
        return sum(each.share >= GOOD for each in self.shares) / max(1, len(self.shares))

    @property
    def short(self) -> list[Share]:
        """Those that must not be, the worst first."""
        return sorted((each for each in self.shares if each.share < NEVER), key=lambda each: each.share)

    @property
    def behind(self) -> list[PlaceGain]:
        return [each for each in self.gains if each.simulated < AHEAD]

    @property
    def kept(self) -> bool:
        return bool(self.shares) and self.good >= ENOUGH and not self.short and not self.behind


def verdict(points: Sequence[Point]) -> GridVerdict:
    """Over all points that know OpenSLED."""
    known = [point for point in points if OPENSLED in point["capacity"]]
    shares = [share for point in known for share in _shares(point)]
    return GridVerdict(shares, [gain for point in known if (gain := _gain(point))])


def _shares(point: Point) -> Iterator[Share]:
    yield from _share(point, "users", point["capacity"])
    for load in point.get("throughput", ()):
        yield from _share(point, f"tokens/s with {load['users']} users", load["tokens_per_s"])


def _share(point: Point, respect: str, values: Mapping[str, float]) -> Iterator[Share]:
    rivals = {name: values[name] for name in RIVALS if name in values}
    best = max(rivals, key=lambda name: rivals[name], default="")
    if best and rivals[best] and OPENSLED in values:
        yield Share(point, respect, values[OPENSLED] / rivals[best], best)


def _gain(point: Point) -> PlaceGain | None:
    """None where the law predicts less than PREDICTED, or one side serves no user."""
    by_law, plain = point.get("law", {}), point["capacity"].get("centralized", 0)
    if not by_law.get("centralized") or not plain:
        return None
    predicted = max(by_law[name] for name in RIVALS) / by_law["centralized"]
    return (
        PlaceGain(point, predicted, point["capacity"][OPENSLED] / plain) if predicted >= PREDICTED else None
    )


def told(found: GridVerdict) -> str:
    """In words."""
    if not found.shares:
        return "opensled was not measured here"
    lowest = min(found.shares, key=lambda each: each.share)
    lines = [
        f"opensled is at {GOOD} or more of the best of {', '.join(RIVALS)} in {100 * found.good:.1f} % of "
        f"{len(found.shares)} comparisons ({100 * ENOUGH:g} % required); "
        f"below {NEVER} in {len(found.short)} (0 required)",
        f"lowest: {lowest}",
        *(f"below {NEVER}: {each}" for each in found.short),
        f"the law predicts {PREDICTED:g} times centralized or more at {len(found.gains)} places; below {AHEAD} there: "
        f"{len(found.behind)}",
        *(f"behind: {each}" for each in found.behind),
    ]
    return "\n".join(lines)


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
