"""Confidence intervals of repeats."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1 on; beyond the last, the normal's 1.96.
T95 = (
    *(12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131),
)


class Interval(NamedTuple):
    """The mean of repeats and its 95 % confidence interval; both ends are the value itself for a single one."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Of at least one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    freedom = len(values) - 1
    t = T95[freedom - 1] if freedom <= len(T95) else 1.96
    half = t * statistics.stdev(values) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half)
