"""Drawing a token from logits in numpy: masks in a fixed order, then argmax with shared noise.

The device draws drafts with this over its own most likely candidates; the target draws in
`verify_server/engine/scores.py` by the same rules over the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opensled.messages import DraftToken, SamplingParams
from opensled.noise import gumbel

# Noise over a whole 150k vocabulary costs milliseconds a token; over the 64 likeliest ids, microseconds.
DRAFT_CANDIDATES = 64


def most_likely(logits: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` largest logits, sorted by logit descending, then id ascending."""
    count = min(count, logits.shape[0])
    threshold = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= threshold)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities of a 1-d float64 array of logits."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def nucleus(probs: np.ndarray, top_p: float) -> int:
    """How many of the descending `probs` make the smallest set that reaches `top_p`."""
    before = np.cumsum(probs) - probs
    return int(np.count_nonzero(before < top_p))


@dataclass(frozen=True)
class Sampler:
    """Draws draft tokens of one sequence: the target's sampling parameters and its noise key."""

    params: SamplingParams
    key: bytes

    def draw(self, logits: np.ndarray, position: int) -> DraftToken:
        """The draft token at `position` from float logits of shape [vocabulary].

        Its confidence is the draft's probability at temperature 1, renormalised over the candidates.
        """
        ids = most_likely(logits, DRAFT_CANDIDATES)
        scores = logits[ids].astype(np.float64)
        winner = self._winner(ids, scores, position)
        return DraftToken(int(ids[winner]), float(softmax(scores)[winner]))

    def _winner(self, ids: np.ndarray, scores: np.ndarray, position: int) -> int:
        """Index into `ids`, which are sorted by score descending."""
        params = self.params
        if params.temperature == 0:
            return 0
        scaled = scores / params.temperature
        if params.top_k:
            scaled = scaled[: params.top_k]
        if params.top_p < 1:
            scaled = scaled[: nucleus(softmax(scaled), params.top_p)]
        noisy = scaled + gumbel(self.key, position, ids[: len(scaled)])
        return int(np.argmax(noisy))
