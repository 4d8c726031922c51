"""Drawing a token from logits in numpy: masks in a fixed order, then argmax with shared noise.

The device draws draft tokens with this from the draft model's likeliest candidates. The server draws the target's
tokens by the same rules over the whole vocabulary, in `verify_server/engine/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np

from opensled.core.messages import DraftToken, SamplingParams, SparseDistribution
from opensled.core.noise import gumbel
from opensled.core.penalties import Emitted, TokenCounts, penalize, penalize_candidates

# Noise over a whole 150k vocabulary costs milliseconds a token; over the 64 likeliest ids, microseconds.
DRAFT_CANDIDATES = 64
# A probability of 1 as a whole number: sums of such parts are the same in any order, and stay below 2^63.
WHOLE = 2.0**62
NEARLY = 1 << 22  # parts that a nucleus may lack of its mass: 0.5 and 0.3 reach 0.8, however softmax rounds


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
    parts = (probs * WHOLE).astype(np.int64)
    before = np.cumsum(parts) - parts
    return int(np.count_nonzero(before < max(1, int(top_p * WHOLE) - NEARLY)))


@dataclass(frozen=True)
class Sampler:
    """Draws draft tokens of one sequence: the target's sampling parameters and its noise key."""

    params: SamplingParams
    key: bytes
    with_confidence: bool = True  # False: it stays 1, which saves a pass over the vocabulary
    vocab_size: int | None = None  # ids the target knows; the draft's logits may be padded beyond
    prompt_length: int = 0  # tokens of the text that penalties do not count
    # Ids below `vocab_size` that mean something else to the target: never drawn
    barred: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)
    skipped: int = 0  # positions that the drafter is not told of, and that its own do not count
    alone: bool = False  # no target verifies what is proposed: only a model may write

    def counts(self, text: Sequence[int]) -> TokenCounts | None:
        """What penalties count of a text that begins with the prompt; None: there are no penalties."""
        return TokenCounts(text[self.prompt_length :]) if self.params.penalizes else None

    def draw(self, logits: np.ndarray, position: int, emitted: Emitted | None = None) -> DraftToken:
        """The draft token at `position` from float logits of shape [vocabulary], after the `emitted` tokens.

        Its confidence is the draft's probability at temperature 1: over the whole vocabulary when greedy (one pass,
        which costs less than finding the candidates), else over the candidates. It is 1 without `with_confidence`.
        """
        logits = self._adjust_logits(logits, emitted)
        if self.params.temperature == 0:
            return self._greedy(logits)
        ids = most_likely(logits, DRAFT_CANDIDATES)
        return self._draw(ids, logits[ids].astype(np.float64), position + self.skipped)

    def draw_from(
        self, ids: np.ndarray, logprobs: np.ndarray, position: int, emitted: Emitted | None = None
    ) -> DraftToken:
        """As `draw`, where only a draft's likeliest tokens are known.

        `ids`: int64 [n], n >= 1, none twice; `logprobs`: float64 [n], the natural logarithms of their probabilities
        over the whole vocabulary. A repetition penalty acts on these, where `draw` has logits: its draws differ a
        little then.
        """
        ids, scores = self._adjust_candidates(ids, logprobs, emitted)
        if self.params.temperature == 0:
            others = max(0.0, 1 - float(np.exp(logprobs).sum()))
            return self.certain(int(ids[0]), float(np.exp(scores[0]) / (np.exp(scores).sum() + others)))
        return self._draw(ids, scores, position + self.skipped)

    def certain(self, id: int, confidence: float) -> DraftToken:
        """A draft token that was not drawn, but follows from what came before."""
        return DraftToken(id, confidence)

    def _draw(self, ids: np.ndarray, scores: np.ndarray, position: int) -> DraftToken:
        winner = self._winner(ids, scores, position)
        if not self.with_confidence:
            return DraftToken(int(ids[winner]))
        return DraftToken(int(ids[winner]), float(softmax(scores)[winner]))

    def _adjust_logits(self, logits: np.ndarray, emitted: Emitted | None) -> np.ndarray:
        """Those of ids the target knows, with the biases and penalties of the request."""
        logits = logits[: self.vocab_size]
        if emitted is None and not self.params.logit_bias and not self.barred.size:
            return logits
        logits = logits.copy()
        logits[self.barred] = -np.inf
        for id, bias in self.params.logit_bias:
            if id < len(logits):
                logits[id] += bias
        if emitted is not None:
            penalize(logits, self.params, emitted)
        return logits

    def _adjust_candidates(
        self, ids: np.ndarray, logprobs: np.ndarray, emitted: Emitted | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of single ids, sorted by score descending, then id ascending."""
        scores = logprobs.copy()
        for id, bias in self.params.logit_bias:
            scores[ids == id] += bias
        if emitted is not None:
            penalize_candidates(ids, scores, self.params, emitted)
        order = np.lexsort((ids, -scores))
        return ids[order], scores[order]

    def _greedy(self, logits: np.ndarray) -> DraftToken:
        """The likeliest token; ties go to the lowest id."""
        winner = int(logits.argmax())
        if not self.with_confidence:
            return self.certain(winner, 1.0)
        return self.certain(winner, 1 / float(np.exp(logits - logits[winner]).sum()))

    def _winner(self, ids: np.ndarray, scores: np.ndarray, position: int) -> int:
        """Index into `ids`, which are sorted by score descending."""
        scaled = self._scale(scores)
        return int(np.argmax(scaled + gumbel(self.key, position, ids[: len(scaled)])))

    def _scale(self, scores: np.ndarray) -> np.ndarray:
        """Descending `scores` / temperature, as many as top_k, top_p and min_p leave."""
        scaled = scores / self.params.temperature
        if self.params.top_k:
            scaled = scaled[: self.params.top_k]
        if self.params.top_p < 1:
            scaled = scaled[: nucleus(softmax(scaled), self.params.top_p)]
        if self.params.min_p:
            scaled = scaled[scaled >= scaled[0] + log(self.params.min_p)]
        return scaled


class SparseSampler(Sampler):
    """For rules with `draft_probs`: draws from its own likeliest candidates, and names their distribution.

    The confidence is that of the likeliest candidate, whichever was drawn: a block that ended before tokens of low
    probability would no longer be a sample of the distributions it names, and the rule would not be exact.
    """

    def certain(self, id: int, confidence: float) -> DraftToken:
        return DraftToken(id, confidence, SparseDistribution((id,), (1.0,)))

    def _draw(self, ids: np.ndarray, scores: np.ndarray, position: int) -> DraftToken:
        probs = softmax(self._scale(scores)).astype(np.float32)  # as they travel: just these are drawn from
        probs = probs[probs > 0]
        noisy = np.log(probs.astype(np.float64)) + gumbel(self.key, position, ids[: len(probs)])
        source = SparseDistribution(tuple(ids[: len(probs)].tolist()), tuple(probs.tolist()))
        return DraftToken(int(ids[np.argmax(noisy)]), float(softmax(scores)[0]), source)


def sampler(params: SamplingParams, key: bytes, draft_probs: bool, prompt_length: int = 0) -> Sampler:
    """The sampler of a sequence; `draft_probs`: whether its acceptance rule needs each token's distribution."""
    return (SparseSampler if draft_probs else Sampler)(params, key, prompt_length=prompt_length)
