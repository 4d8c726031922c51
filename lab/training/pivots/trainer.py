"""From labels to a classifier: which mismatches it learns from, and which ones say how good it is.

The tasks are in folds. For each fold a classifier that never saw its tasks gives the chances of its mismatches, and all
these together decide sigma: so every mismatch counts as held out once. The classifier that is kept learns from all
folds but the one that ends its training.
"""

from typing import Any, NamedTuple

import numpy as np

from lab.training.pivots.labels import FOLDS, Labels
from lab.training.pivots.network import PivotNetwork, batch_of, fit
from lab.training.pivots.sigma import choose, measure, sweep
from opensled.core.errors import UsageError
from verify_server.rules.pivots import PivotClassifier

SAME = 1e-5  # of the chances in torch and in numpy
LEAST = 5  # pivots, and others, that each fold needs


class Trained(NamedTuple):
    weights: dict[str, np.ndarray]
    sigma: float
    report: dict[str, Any]  # for people


def train(labels: Labels, seed: int) -> Trained:
    """Raises UsageError for too few labels."""
    _require_enough(labels)
    held_out = np.zeros(len(labels), np.float32)
    for fold in range(FOLDS):
        network = _fit(labels, without=fold, watched=(fold + 1) % FOLDS, seed=seed)
        held_out[labels.folds == fold] = network.chances(batch_of(labels, labels.folds == fold))
    network = _fit(labels, without=None, watched=0, seed=seed)
    _require_same(network, labels)
    chosen = choose(held_out, labels.pivots)
    report = {
        "sigma_by": chosen.by,
        "held_out": measure(held_out, labels.pivots, chosen.sigma),
        "other_tasks_chose": _chosen_elsewhere(held_out, labels),
        "kinds": _kinds(held_out, labels, chosen.sigma),
        "sweep": sweep(held_out, labels.pivots, chosen.sigma),
    }
    return Trained(network.weights(), chosen.sigma, report)


def _require_enough(labels: Labels) -> None:
    for fold in range(FOLDS):
        pivots = labels.pivots[labels.folds == fold]
        if min(pivots.sum(), (~pivots).sum()) < LEAST:
            raise UsageError(
                f"{len(labels)} labelled mismatches, {labels.pivots.sum()} of them pivots, are too few to train on: "
                f"each of {FOLDS} parts of the tasks needs {LEAST} pivots and {LEAST} others; ask more with --items"
            )


def _fit(labels: Labels, without: int | None, watched: int, seed: int) -> PivotNetwork:
    """`without`: fold that it must not see; `watched`: the one whose loss ends the training."""
    learned = (labels.folds != watched) & (labels.folds != (FOLDS if without is None else without))
    return fit(batch_of(labels, learned), batch_of(labels, labels.folds == watched), seed)


def _chosen_elsewhere(held_out: np.ndarray, labels: Labels) -> dict[str, float]:
    """Recall, and what stands of the others, where each fold is decided by the sigma that the other folds choose.

    The chosen sigma is measured on what it was chosen by; this is not.
    """
    held = np.zeros(len(labels), bool)
    for fold in range(FOLDS):
        inside = labels.folds == fold
        held[inside] = held_out[inside] > choose(held_out[~inside], labels.pivots[~inside]).sigma
    found = measure(held.astype(np.float32), labels.pivots, 0.5)
    return {name: found[name] for name in ("recall", "precision", "others_standing")}


def _kinds(held_out: np.ndarray, labels: Labels, sigma: float) -> dict[str, Any]:
    """The same for each kind of tasks by itself."""
    kinds = sorted(set(labels.tasks.tolist()))
    parts = {kind: labels.tasks == kind for kind in kinds}
    return {kind: measure(held_out[part], labels.pivots[part], sigma) for kind, part in parts.items()}


def _require_same(network: PivotNetwork, labels: Labels) -> None:
    """The server computes in numpy what was trained in torch."""
    classifier = PivotClassifier(0, network.weights())
    served = classifier.chances(labels.states, labels.entropies, labels.probs)
    trained = network.chances(batch_of(labels, np.ones(len(labels), bool)))
    if (gap := float(np.abs(served - trained).max())) > SAME:
        raise AssertionError(f"numpy and torch differ by {gap} in the chance of a pivot")
