"""How large sigma may be: the largest at which the classifier still finds 99 % of the pivots.

A draft token stands where its chance to be a pivot is at most sigma; a pivot is found where it is above.
"""

from math import floor, sqrt
from typing import Any, NamedTuple

import numpy as np

RECALL = 0.99  # wanted of the pivots
Z = 1.96  # of a 95 % interval
STEP = 1e-6  # sigma is rounded down to it
SWEEP = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Chosen(NamedTuple):
    sigma: float
    by: str  # "lower end", or "point estimate" where there are too few pivots for that


def wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if not of:
        return 0.0, 1.0
    share, spread = hits / of, Z * Z / of
    middle = share + spread / 2
    half = Z * sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def choose(chances: np.ndarray, pivots: np.ndarray) -> Chosen:
    """`chances` [n] of held-out mismatches; `pivots` bool [n]: what they are."""
    own = np.sort(chances[pivots])
    by, missed = "lower end", _missable(len(own))
    if missed is None:
        by, missed = "point estimate", int(len(own) * (1 - RECALL) + 1e-9)
    least = float(own[missed]) if len(own) else 1.0
    return Chosen(max(0.0, round(floor(np.nextafter(least, -1) / STEP) * STEP, 6)), by)


def _missable(count: int) -> int | None:
    """Pivots of `count` that may be missed so that the lower end of the recall is RECALL; None: there are too few."""
    fits = (missed for missed in range(count) if wilson(count - missed, count)[0] >= RECALL)
    return max(fits, default=None)


def measure(chances: np.ndarray, pivots: np.ndarray, sigma: float) -> dict[str, Any]:
    """Counts and shares at one sigma; shares come with their 95 % intervals."""
    held = chances > sigma
    found, held_all, standing = int((held & pivots).sum()), int(held.sum()), int((~held & ~pivots).sum())
    return {
        "sigma": sigma,
        "recall": _share(found, int(pivots.sum())),
        "precision": _share(found, held_all),
        "others_standing": _share(standing, int((~pivots).sum())),
    }


def sweep(chances: np.ndarray, pivots: np.ndarray, chosen: float) -> list[dict[str, Any]]:
    """At many sigmas, the chosen one among them."""
    return [measure(chances, pivots, sigma) for sigma in sorted({*SWEEP, chosen})]


def _share(hits: int, of: int) -> dict[str, Any]:
    low, high = wilson(hits, of)
    share = round(hits / of, 4) if of else None
    return {"share": share, "hits": hits, "of": of, "low": round(low, 4), "high": round(high, 4)}
