"""What the confidences of drafts are worth: the chance that a token stands, given what it was said to be.

A drafter says of each token how sure it is. A server learns how often such tokens stood, of each device and of its own
drafter, so that who says too much loses rows and never changes a text.
"""

from __future__ import annotations

from collections.abc import Iterable

from hw_profiles.fading import remaining_share

BINS = 10  # of confidences from 0 to 1, equally wide
HALF_LIFE = 512.0  # tokens of a bin after which half of what they showed is forgotten (chosen)
PRIOR = 8.0  # tokens that what is known otherwise counts for (chosen)
UNTOLD = 1.0  # the confidence of a drafter that does not say (`DraftToken`)


class ConfidenceCalibration:
    """Of one drafter."""

    __slots__ = ("_hits", "_tries", "_usual")

    def __init__(self, usual: ConfidenceCalibration | None = None) -> None:
        """`usual`: of all drafters of its tenant, which learns from this one; None = confidences mean what they say."""
        self._usual = usual
        self._hits, self._tries = [0.0] * BINS, [0.0] * BINS

    def chance(self, confidence: float) -> float:
        """That a token of this confidence stands if those before it do."""
        own = _bin(confidence)
        usual = confidence if self._usual is None else self._usual.chance(confidence)
        return (self._hits[own] + PRIOR * usual) / (self._tries[own] + PRIOR)

    def add_verdict(self, tried: Iterable[tuple[float, bool]]) -> None:
        """Of each token behind nothing but tokens that stand: its confidence, and whether it stands."""
        told = [(confidence, stands) for confidence, stands in tried if confidence < UNTOLD]
        for confidence, stands in told:
            self._add(confidence, stands)
        if self._usual is not None and told:
            self._usual.add_verdict(told)

    def _add(self, confidence: float, stands: bool) -> None:
        own, keep = _bin(confidence), remaining_share(1, HALF_LIFE)
        self._hits[own] = keep * self._hits[own] + stands
        self._tries[own] = keep * self._tries[own] + 1


def _bin(confidence: float) -> int:
    return min(BINS - 1, int(confidence * BINS))
