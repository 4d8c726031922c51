"""The attack of figure `traffic`: tell from a trace of sizes, times and directions which prompt was asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.traffic_traces import Answered, Passed

FIRST = 80  # reads whose sizes and gaps are features one by one
STEPS = 40  # points of the cumulated bytes
BIN_S, BINS = 0.05, 40  # counts of reads by time
TREES = 100


def features(trace: Sequence[Passed]) -> np.ndarray:
    """One row of numbers; as in the published attacks: sizes and gaps in order, their sums and their spread."""
    times, sizes = (np.array(column, dtype=np.float64) for column in zip(*trace))
    gaps = np.diff(times, prepend=times[0])
    parts = [_first(sizes), _first(gaps), _sampled(np.cumsum(sizes)), _sampled(np.cumsum(np.abs(sizes)))]
    bins = np.minimum(times // BIN_S, BINS - 1).astype(int)
    parts += [np.bincount(bins[chosen], minlength=BINS) for chosen in (sizes > 0, sizes < 0)]
    parts += [_summary(times[chosen], sizes[chosen]) for chosen in (sizes > 0, sizes < 0, sizes != 0)]
    return np.concatenate(parts)


def _first(values: np.ndarray) -> np.ndarray:
    return np.pad(values[:FIRST], (0, max(0, FIRST - len(values))))


def _sampled(values: np.ndarray) -> np.ndarray:
    return np.interp(np.linspace(0, len(values) - 1, STEPS), np.arange(len(values)), values)


def _summary(times: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Count, sum, first and last time, and quantiles of gaps and sizes of one direction."""
    if len(times) < 2:
        return np.zeros(4 + 2 * 7)
    gaps, quantiles = np.diff(times), (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
    return np.concatenate(
        [
            [len(sizes), sizes.sum(), times[0], times[-1]],
            np.quantile(gaps, quantiles),
            np.quantile(np.abs(sizes), quantiles),
        ]
    )


def recognised(answers: Sequence[Sequence[Answered]], folds: int) -> list[float]:
    """Percent of the test answers whose prompt is told right, for each fold; `answers`: a list for each repeat.

    A fold tests some of the repeats and trains on the others.
    """
    from sklearn.ensemble import RandomForestClassifier

    rows = [np.array([features(each.trace) for each in repeat]) for repeat in answers]
    labels = [np.array([each.prompt for each in repeat]) for repeat in answers]
    scores = []
    for fold in range(folds):
        tested = [number for number in range(len(rows)) if number % folds == fold]
        trained = [number for number in range(len(rows)) if number % folds != fold]
        forest = RandomForestClassifier(TREES, random_state=0, n_jobs=-1)
        forest.fit(*(np.concatenate([part[number] for number in trained]) for part in (rows, labels)))
        test_rows, test_labels = (
            np.concatenate([part[number] for number in tested]) for part in (rows, labels)
        )
        scores.append(100 * float(np.mean(forest.predict(test_rows) == test_labels)))
    return scores
