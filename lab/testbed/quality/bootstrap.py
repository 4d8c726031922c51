"""Paired bootstrap intervals: items are drawn again with replacement, with all that was measured of them."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lab.testbed.load.interval import Interval

Array = npt.NDArray[np.float64]
RESAMPLES = 4000
AT_ONCE = 100  # resamples, so that the drawn indices of thousands of items fit into memory
ENDS = (2.5, 97.5)  # percentiles of a 95 % interval


def bootstrap(statistic: Callable[[Array], Array], values: Array, seed: int) -> Interval:
    """A statistic of sums with its 95 % percentile interval.

    `values`: one row for each item, one column for each quantity. `statistic`: from sums over items, in the last axis
    the quantities, to one number for each leading index.
    """
    rng, count = np.random.default_rng(seed), len(values)
    found = [
        statistic(values[rng.integers(count, size=(AT_ONCE, count))].sum(axis=1))
        for _ in range(RESAMPLES // AT_ONCE)
    ]
    low, high = np.percentile(np.concatenate(found), ENDS)
    [itself] = statistic(values.sum(axis=0, keepdims=True))
    return Interval(float(itself), float(low), float(high))


def mean_difference(ours: Array, theirs: Array, seed: int) -> Interval:
    """Of the means of two quantities of the same items."""
    both = np.stack([ours - theirs, np.ones_like(ours)], axis=1)
    return bootstrap(lambda sums: sums[:, 0] / sums[:, 1], both, seed)


def ratio_of_rates(ours: tuple[Array, Array], theirs: tuple[Array, Array], seed: int) -> Interval:
    """Of all amounts over all seconds, ours over theirs: each is (amounts, seconds) of the same items."""
    columns = np.stack([*ours, *theirs], axis=1)
    return bootstrap(lambda sums: (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / sums[:, 3]), columns, seed)
