"""Least squares whose coefficients are costs: none of them is below 0."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def non_negative(gram: Array, right: Array) -> Array:
    """The x >= 0 with least x @ gram @ x / 2 - right @ x, by active sets: columns below 0 leave,
    one that would help returns.

    `gram` is positive definite. Should the sets go round in circles, the best x so far is as good as any.
    """
    columns = len(right)
    free = np.ones(columns, bool)
    found = np.zeros(columns)
    for _ in range(3 * columns):
        solved = np.zeros(columns)
        solved[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
        if solved.min() < 0:
            free &= solved > 0
            continue
        found = solved
        slopes = np.where(free, -np.inf, right - gram @ found)
        best = int(slopes.argmax())
        if slopes[best] <= 1e-9:
            break
        free[best] = True
    return found
