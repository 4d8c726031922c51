"""The trade-off: what it costs, in money and energy, that every user reads faster.

The law says how many users an accelerator holds at each pace, mode and draft length. The fewer share it, the faster
each of them reads, and the more each token costs. Each objective of objective.py picks one of these points. All of it
is derived.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lab.testbed.planner.acceptance import LENGTHS
from lab.testbed.planner.capacity_law import FASTEST, MODES, Capacity, Setting, capacity
from lab.testbed.planner.objective import POWERS, value
from lab.testbed.planner.token_cost import Cost, PlanPrices, cost_of

FINE = 2 ** (1 / 8)  # factor from one pace to the next: finer than the law is exact
BELOW = 16  # such steps below the promised pace the curve begins: at a quarter of it


@dataclass(frozen=True)
class OperatingPoint:
    """So many users at a pace, in one mode with one draft length, and what their tokens cost."""

    found: Capacity
    pace: float  # tokens/s of each user
    cost: Cost

    def value(self, name: str) -> float:
        """By one of POWERS: see objective.py."""
        per_token = self.cost.joules_per_token if name == "energy" else self.cost.usd_per_million_tokens
        return value(name, self.pace, per_token * self.pace)

    def as_json(self) -> dict[str, Any]:
        return {
            "label": "derived",
            "mode": self.found.mode,
            "draft_length": self.found.draft_length,
            "users": self.found.users,
            "tokens_per_s": round(self.pace, 3),
            "usd_per_million_tokens": round(self.cost.usd_per_million_tokens, 4),
            "joules_per_token": round(self.cost.joules_per_token, 4),
        }


def operating_points(
    setting: Setting, mode: str, prices: PlanPrices, slowest: float
) -> Iterator[OperatingPoint]:
    """Of one mode, from the pace `slowest` on, for each draft length."""
    for length in (0,) if mode == "centralized" else LENGTHS[1:]:
        for pace in paces(slowest):
            found = capacity(setting, mode, length, pace)
            cost = cost_of(found, setting, prices, pace)
            if cost is None:
                break
            yield OperatingPoint(found, pace, cost)


def paces(slowest: float) -> Iterator[float]:
    """From `slowest` to FASTEST."""
    pace = slowest
    while pace < FASTEST:
        yield pace
        pace *= FINE


def best_point(found: Sequence[OperatingPoint], name: str) -> OperatingPoint | None:
    """By one of POWERS; of equals the cheapest, the first of these. None = there is no point."""
    return max(found, key=lambda each: (each.value(name), -each.cost.usd_per_million_tokens), default=None)


@dataclass(frozen=True)
class TradeOff:
    """All operating points of one accelerator, and which of those that keep the promised pace each objective takes."""

    accelerator: str
    promised: float  # tokens/s
    points: tuple[OperatingPoint, ...]

    @property
    def picks(self) -> dict[str, OperatingPoint]:
        kept = [each for each in self.points if each.pace >= self.promised * (1 - 1e-9)]
        found = {name: best_point(kept, name) for name in POWERS}
        return {name: each for name, each in found.items() if each}

    def envelope(self, mode: str, measure: Callable[[Cost], float]) -> list[OperatingPoint]:
        """At each pace the draft length of `mode` that costs least by `measure`."""
        least: dict[float, OperatingPoint] = {}
        for each in self.points:
            known = least.get(each.pace)
            if each.found.mode == mode and (known is None or measure(each.cost) < measure(known.cost)):
                least[each.pace] = each
        return [least[pace] for pace in sorted(least)]

    def as_json(self) -> dict[str, Any]:
        return {
            "label": "derived",
            "accelerator": self.accelerator,
            "promised_tokens_per_s": self.promised,
            "picks": {name: each.as_json() for name, each in self.picks.items()},
            "points": [each.as_json() for each in self.points],
        }


def trade_off(setting: Setting, prices: PlanPrices, promised: float) -> TradeOff:
    """On the accelerator of `setting`, from paces below the promised one on."""
    slowest = promised / FINE**BELOW
    found = tuple(point for mode in MODES for point in operating_points(setting, mode, prices, slowest))
    return TradeOff(setting.cost.accelerator.id, promised, found)
