"""Rule `pad`: a mismatch stands where a small classifier says that the token is no pivot (PAD, arXiv 2511.00351).

A draft token that is not the target's own stands if its chance to be a pivot is at most sigma, and the target's own
probability of it is at least a floor. The classifier reads the state after the token, which the verification computes
anyway, and the distribution before it, raw in training and decoding alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path

import numpy as np

from opensled.core.errors import NotFound, UnsupportedModel
from opensled.models.store import bundled_folder, is_name
from verify_server.engine.base import TargetEngine
from verify_server.rules.base import AcceptanceRule, SessionScores
from verify_server.rules.loose import GUIDED, LooseRule, is_guided, number, options_of
from verify_server.rules.pivots import PivotClassifier, load, require_target

FLOOR = 1e-4  # the paper's
OFF = -1.0  # a sigma under which nothing stands


class Pad(LooseRule):
    """Options: sigma, floor, guided."""

    needs = frozenset({"entropy", "logprobs", "probs_of", "hidden_states"})

    def __init__(self, options: str = "", classifier: PivotClassifier | None = None) -> None:
        """`classifier`: of the target; without one every token counts as a pivot."""
        self._classifier = classifier
        usual = classifier.sigma if classifier else OFF
        found = options_of(options, {"sigma": f"{usual:g}", "floor": f"{FLOOR:g}", GUIDED: "no"}, "pad")
        self.sigma, self.floor = (
            number(found["sigma"], "sigma", OFF, 1),
            number(found["floor"], "floor", 0, 1),
        )
        self.guided = is_guided(found)
        self.settings = f"sigma={self.sigma:g},floor={self.floor:g}" + f",{GUIDED}=yes" * self.guided

    @classmethod
    def make_factory(
        cls, model: str, pivots: str, engine: TargetEngine, vocabulary: str
    ) -> Callable[[str], AcceptanceRule]:
        """See `AcceptanceRule`; raises NotFound, UnsupportedModel, VocabularyMismatch."""
        folder = _folder(model, pivots)
        classifier = load(folder)
        require_target(classifier, folder, vocabulary)
        engine.keep(classifier.layer)
        size = engine.info.hidden_size
        if size != classifier.size:
            raise UnsupportedModel(
                f"the pivot classifier in {folder} reads states of {classifier.size} numbers; this target has {size}"
            )
        return lambda options: cls(options, classifier)

    def _stands(self, index: int, ids: Sequence[int], own: Sequence[int], scores: SessionScores) -> bool:
        if self._classifier is None or self.sigma < 0:
            return False
        [((_, nats), *_)] = scores.logprobs([index], [ids[index]], 0)
        if exp(nats) < self.floor or not scores.keeps([index], [ids[index]])[0]:
            return False
        entropy = np.array(scores.entropy([index]), np.float32)
        # Row i + 1 follows draft token i: the state after the token, the distribution before it.
        states, prob = scores.hidden_states([index + 1]), np.array([exp(nats)], np.float32)
        return bool(self._classifier.chances(states, entropy, prob)[0] <= self.sigma)


def _folder(model: str, pivots: str) -> Path:
    if pivots:
        return Path(pivots)
    folder = bundled_folder() / "_pivots" / model
    if is_name(model) and folder.is_dir():
        return folder
    raise NotFound(
        f"no pivot classifier for {model!r} comes with OpenSLED; train one with `opensled train-pivots`, and name its "
        "folder with --pivots",
        "model",
    )
