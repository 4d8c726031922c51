"""Policy `predicted`: a block ends where the chance that its tokens still count is less than they cost.

A logistic model predicts whether the target will accept a token, from what the draft model says of it (confidence,
entropy, margin between the two likeliest ids) and from its place. It learns from every verdict, so it needs no examples
beforehand. The idea to predict rejections is WISP's (arXiv 2601.11652), which trains offline.
"""

from __future__ import annotations

import threading
from math import exp, log, log1p
from typing import Any

import numpy as np

from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.base import LengthOptions
from edge_client.lengths.observed import LATER
from opensled.messages import DraftBlock, DraftToken

Features = tuple[float, ...]

# The constants are chosen on the recorded drafts of the tiny family (tests/test_predicted.py).
LEAST = 0.05  # no token with a smaller chance is sent, even if it costs nothing
STEP = 0.01  # weight of the newest token in the mean chance of a token to stand
SHARP = 1e-4  # confidences closer to 0 or 1 are taken for this one: log-odds stay finite
MEMORY = 0.999  # weight that is kept from token to token: the latest 1,000 count
# Weights before the first verdict: confidence means what it says, and nothing else tells anything.
BELIEF: Features = (0.0, 1.0, 0.0, 0.0, 0.0)
PRECISION = np.diag((4.0, 4.0, 8.0, 8.0, 8.0))  # of the prior of each weight


def features(token: DraftToken, index: int) -> Features:
    """1, log-odds of the confidence, entropy in nats, margin, and the place in the block on a logarithmic scale."""
    confidence = min(max(token.confidence, SHARP), 1 - SHARP)
    return (1.0, log(confidence / (1 - confidence)), token.entropy, token.margin, log1p(index))


class Logistic:
    """Online logistic regression: a Newton step for each token, with the curvature of the latest tokens."""

    def __init__(self) -> None:
        self._weights = BELIEF
        self._curvature = np.zeros((len(BELIEF), len(BELIEF)))

    def chance(self, row: Features) -> float:
        """The chance that the token with these features is accepted."""
        score = 0.0
        for weight, value in zip(self._weights, row):
            score += weight * value
        return 1 / (1 + exp(-min(max(score, -30.0), 30.0)))

    def learn(self, row: Features, accepted: bool) -> None:
        """The target accepted or rejected a token with these features."""
        chance, values = self.chance(row), np.array(row)
        self._curvature = MEMORY * self._curvature + chance * (1 - chance) * np.outer(values, values)
        step = np.linalg.solve(self._curvature + PRECISION, values) * (accepted - chance)
        self._weights = tuple((np.array(self._weights) + step).tolist())


class _Block(threading.local):
    """The block that a thread is drafting."""

    ready = 0  # tokens at hand
    reach = 1.0  # the chance that all tokens so far stand


class Predicted(Adaptive):
    """`Adaptive` says what tokens cost, and whether drafts pay at all; the model says which tokens are sent."""

    needs_confidence = needs_spread = True

    def __init__(self, threshold: float, *settings: Any, **more: Any) -> None:
        """`threshold`: least chance of a token, until the law knows what it costs. The others: see `Adaptive`."""
        super().__init__(*settings, **more)
        self._threshold = threshold
        self._model, self._block = Logistic(), _Block()
        self._usual = LATER  # share of tokens that stand

    @classmethod
    def of(cls, options: LengthOptions) -> Predicted:
        return cls(
            options.confidence,
            options.length,
            options.look_ahead,
            options.tree,
            options.battery_floor,
        )

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        """As much as there is room for, if drafts pay."""
        self._block.ready = ready
        return self.top(limit, hint) if super().most(limit, hint, ready) else 0

    def goes_on(self, index: int) -> bool:
        """Tokens at hand cost nothing. The next token's own chance is not known before it is drafted."""
        block = self._block
        if index == 0 or index < block.ready:
            return True
        price = self.price(fresh=True)
        return price is None or block.reach * self._usual >= price

    def belongs(self, token: DraftToken, index: int) -> bool:
        """The first token always does: an empty block would cost a round and teach nothing."""
        block = self._block
        reach = 1.0 if index == 0 else block.reach
        block.reach = reach * self._model.chance(features(token, index))
        if index == 0:
            return True
        price = self.price(fresh=False)
        return block.reach >= (self._threshold if price is None else max(price, LEAST))

    def answered(self, block: DraftBlock, accepted: int, seconds: float, awaited: bool = True) -> None:
        """Tokens after the first wrong one are not judged."""
        super().answered(block, accepted, seconds, awaited)
        if not block.parents:
            for index, token in enumerate(block.tokens[: accepted + 1]):
                self._model.learn(features(token, index), index < accepted)
                self._usual += ((index < accepted) - self._usual) * STEP
