"""The rule `predicted`: a block ends where the chance that its tokens still count is less than they cost.

A small logistic model forecasts, from what the draft model says of each token (confidence, entropy, margin between its
two likeliest ids) and from its place, whether the target will accept it. It learns from every verdict, so it needs no
set of examples beforehand; the idea to predict rejections is WISP's (arXiv 2601.11652), which trains offline.
"""

from __future__ import annotations

import threading
from math import exp, log, log1p

import numpy as np

from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.base import DraftLengthPolicy, LengthOptions
from edge_client.lengths.observed import LATER
from edge_client.lengths.status import DraftStatus
from opensled.messages import DraftBlock, DraftToken

Features = tuple[float, ...]

LEAST = 0.05  # no token is sent whose chance is less, be it for nothing: drafts beside it would be better
STEP = 0.01  # of the way from the usual share of accepted tokens to the newest one
SHARP = 1e-4  # confidences are told apart as far as this from 0 and 1
MEMORY = 0.999  # of what was learned is kept from token to token: it counts for some 1,000 of them
# What is believed before the first verdict: confidence means what it says, nothing else tells anything.
BELIEF: Features = (0.0, 1.0, 0.0, 0.0, 0.0)
CAUTION = np.diag((4.0, 4.0, 8.0, 8.0, 8.0))  # how firmly, as the precision of each weight


def features(token: DraftToken, index: int) -> Features:
    """1, log-odds of the confidence, entropy in nats, margin, and the place in the block on a logarithmic scale."""
    confidence = min(max(token.confidence, SHARP), 1 - SHARP)
    return (1.0, log(confidence / (1 - confidence)), token.entropy, token.margin, log1p(index))


class Logistic:
    """Online logistic regression: a Newton step for each token, with the curvature of those seen lately."""

    def __init__(self) -> None:
        self._weights = BELIEF
        self._seen = np.zeros((len(BELIEF), len(BELIEF)))  # curvature

    def chance(self, row: Features) -> float:
        """That what `row` describes is accepted."""
        score = 0.0
        for weight, value in zip(self._weights, row):
            score += weight * value
        return 1 / (1 + exp(-min(max(score, -30.0), 30.0)))

    def learn(self, row: Features, accepted: bool) -> None:
        """One token was judged."""
        chance, values = self.chance(row), np.array(row)
        self._seen = MEMORY * self._seen + chance * (1 - chance) * np.outer(values, values)
        step = np.linalg.solve(self._seen + CAUTION, values) * (accepted - chance)
        self._weights = tuple((np.array(self._weights) + step).tolist())


class _Block(threading.local):
    """The block that a drafter's thread is drafting: its tokens at hand, and the chance that all so far stand."""

    ready = 0
    reach = 1.0


class Predicted(DraftLengthPolicy):
    """The law of `Adaptive` says what tokens cost, and whether drafts pay at all."""

    needs_confidence = needs_spread = True

    def __init__(self, law: Adaptive, threshold: float) -> None:
        """`threshold`: least chance of a token, until the law knows what it costs."""
        self._law, self._threshold = law, threshold
        self._model, self._block = Logistic(), _Block()
        self._usual = LATER  # share of tokens that stand

    @classmethod
    def of(cls, options: LengthOptions) -> Predicted:
        return cls(Adaptive.of(options), options.confidence)

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        """See `DraftLengthPolicy`: as much as there is room for, if drafts pay."""
        self._block.ready = ready
        return self._law.top(limit, hint) if self._law.most(limit, hint, ready) else 0

    def ahead(self, limit: int, hint: int | None = None) -> int:
        """See `DraftLengthPolicy`."""
        return self._law.ahead(limit, hint)

    def nodes(self, limit: int, hint: int | None = None) -> int:
        """See `DraftLengthPolicy`."""
        return self._law.nodes(limit, hint)

    def goes_on(self, index: int) -> bool:
        """See `DraftLengthPolicy`. Tokens at hand cost nothing; how sure the next token is, is not known before."""
        block = self._block
        if index == 0 or index < block.ready:
            return True
        price = self._law.price(fresh=True)
        return price is None or block.reach * self._usual >= price

    def belongs(self, token: DraftToken, index: int) -> bool:
        """See `DraftLengthPolicy`. The first one always does: an empty block would cost a round, and teach nothing."""
        block = self._block
        reach = 1.0 if index == 0 else block.reach
        block.reach = reach * self._model.chance(features(token, index))
        if index == 0:
            return True
        price = self._law.price(fresh=False)
        return block.reach >= (self._threshold if price is None else max(price, LEAST))

    def drafted(self, tokens: int, seconds: float) -> None:
        """See `DraftLengthPolicy`."""
        self._law.drafted(tokens, seconds)

    def answered(self, block: DraftBlock, accepted: int, seconds: float) -> None:
        """See `DraftLengthPolicy`. The tokens after the first wrong one were not judged."""
        self._law.answered(block, accepted, seconds)
        if not block.parents:
            for index, token in enumerate(block.tokens[: accepted + 1]):
                self._model.learn(features(token, index), index < accepted)
                self._usual += ((index < accepted) - self._usual) * STEP

    def streamed(self, tokens: int, seconds: float) -> None:
        """See `DraftLengthPolicy`."""
        self._law.streamed(tokens, seconds)

    @property
    def status(self) -> DraftStatus:
        """What it has settled on."""
        return self._law.status
