"""The pivot classifier of one target: how likely a token that is not the target's own changes what the answer comes to.

A pivot is a token after which the target solves a task less often than after its own (PAD, arXiv 2511.00351, definition
2). The classifier sees what the target makes of the token: the state of one of its late layers after the token, and the
entropy and the token's probability before it. `opensled train-pivots` makes the files: `pivots.json` says what they
are and whose, `pivots.npz` has the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from opensled.core.errors import NotFound, UnsupportedModel, VocabularyMismatch
from opensled.core.files import read_kept

Array = NDArray[np.float32]

ABOUT, WEIGHTS = "pivots.json", "pivots.npz"
FORMAT = 1
MAX_WIDTH, MAX_SIZE = 1 << 12, 1 << 16  # of a layer here, and of the target's states
SMALLEST = 1e-6  # of a state's norm, against division by 0
# Least probability whose logarithm is taken: below it tokens differ in nothing that matters.
MIN_PROB = 1e-9
FACTS = 2  # entropy and probability
WEIGHT_NAMES = ("state", "facts", "inner", "inner_bias", "outer", "outer_bias")


@dataclass(frozen=True)
class PivotClassifier:
    """A small network: states and facts, each through one linear layer, then one hidden layer (PAD's "extended_v2").

    `state` [size, s], `facts` [2, f], `inner` [s + f, h], `inner_bias` [h], `outer` [h], `outer_bias` [1].
    """

    layer: int  # whose states it reads, as transformers number `output_hidden_states`
    weights: Mapping[str, Array]
    target: str = ""  # name of the target
    vocabulary: str = ""  # fingerprint of the target's (opensled/core/vocabulary.py)
    sigma: float = 0.5  # default: a token stands if its chance to be a pivot is at most this
    training: Mapping[str, Any] = field(default_factory=dict)  # how it was trained and measured, for people

    @property
    def size(self) -> int:
        """Of the states."""
        return int(self.weights["state"].shape[0])

    def chances(self, states: Array, entropies: Array, probs: Array) -> Array:
        """[n]: of each token that it is a pivot.

        `states` [n, size] after each token; `entropies` (nats) and `probs` of the token [n], both before it and raw.
        """
        own = self.weights
        hidden = np.maximum(0.0, features(states, entropies, probs, own) @ own["inner"] + own["inner_bias"])
        # The logistic function, without an exponential that overflows.
        return np.asarray(0.5 + 0.5 * np.tanh((hidden @ own["outer"] + own["outer_bias"][0]) / 2), np.float32)


def features(states: Array, entropies: Array, probs: Array, weights: Mapping[str, Array]) -> Array:
    """[n, s + f]: what the hidden layer reads. States count by their direction: their lengths differ by position."""
    norms = np.maximum(SMALLEST, np.sqrt(np.mean(np.square(states, dtype=np.float32), axis=1, keepdims=True)))
    facts = np.stack([entropies, np.log(np.maximum(MIN_PROB, probs))], axis=1).astype(np.float32)
    return np.concatenate([states / norms @ weights["state"], facts @ weights["facts"]], axis=1)


def load(folder: Path) -> PivotClassifier:
    """Raises NotFound and UnsupportedModel."""
    about, weights = _about(folder), _weights(folder)
    try:
        return PivotClassifier(
            layer=int(about["layer"]),
            weights=weights,
            target=str(about["target"]),
            vocabulary=str(about["vocabulary"]),
            sigma=_chance(about["sigma"]),
            training=dict(about["training"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(folder, f"{type(error).__name__}: {error}") from error


def require_target(found: PivotClassifier, folder: Path, vocabulary: str) -> None:
    """Raises VocabularyMismatch for the classifier of another vocabulary."""
    if found.vocabulary != vocabulary:
        raise VocabularyMismatch(
            f"the pivot classifier in {folder} was trained for {found.target!r}, which has another vocabulary than "
            "this target; take one that was trained for it"
        )


def _about(folder: Path) -> dict[str, Any]:
    try:
        kept = read_kept(folder / ABOUT)
        about = None if kept is None else json.loads(kept)
    except (OSError, ValueError) as error:
        raise _damage_error(folder, str(error)) from error
    if kept is None:
        raise NotFound(
            f"there is no pivot classifier in {folder}; train one with `opensled train-pivots`", "model"
        )
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise _damage_error(folder, f"{ABOUT} is of another format")
    return about


def _weights(folder: Path) -> dict[str, Array]:
    try:
        with np.load(folder / WEIGHTS, allow_pickle=False) as file:
            weights = {name: np.asarray(file[name], np.float32) for name in WEIGHT_NAMES}
    except (OSError, KeyError, ValueError, BadZipFile, EOFError) as error:
        raise _damage_error(folder, str(error)) from error
    if not _fits(weights):
        raise _damage_error(folder, "its matrices do not fit each other")
    return weights


def _fits(weights: Mapping[str, Array]) -> bool:
    """Whether the shapes are those of `PivotClassifier`, and all numbers are finite."""
    if [weights[name].ndim for name in WEIGHT_NAMES] != [2, 2, 2, 1, 1, 1]:
        return False
    (size, s), (count, f), (joined, h) = (weights[name].shape for name in ("state", "facts", "inner"))
    ends = (weights["inner_bias"].shape, weights["outer"].shape, weights["outer_bias"].shape)
    small = size <= MAX_SIZE and max(s, f, h) <= MAX_WIDTH
    shapes = count == FACTS and joined == s + f and ends == ((h,), (h,), (1,))
    return small and shapes and all(bool(np.isfinite(each).all()) for each in weights.values())


def _chance(value: Any) -> float:
    if not 0 <= float(value) <= 1:  # also NaN
        raise ValueError(f"{value} is no chance")
    return float(value)


def _damage_error(folder: Path, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the pivot classifier in {folder} cannot be used: {' '.join(why.split())[:200]}; train it again with "
        "`opensled train-pivots`"
    )
