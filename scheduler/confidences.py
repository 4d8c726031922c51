"""What the confidences of drafts are worth: the chance that a token stands, given what it was said to be.

A drafter says of each token how sure it is. A server learns how often such tokens stood, of each device and of its own
drafter, so that who says too much loses rows and never changes a text.
"""

from __future__ import annotations

from collections.abc import Sequence

from hw_profiles.fading import kept

BINS = 10  # of confidences from 0 to 1, equally wide
HALF_LIFE = 512.0  # tokens of a bin after which half of what they showed is forgotten (chosen)
PRIOR = 8.0  # tokens that a confidence itself counts for (chosen)


class ConfidenceCalibration:
    """Of one drafter."""

    __slots__ = ("_hits", "_tries")

    def __init__(self) -> None:
        self._hits, self._tries = [0.0] * BINS, [0.0] * BINS

    def chance(self, confidence: float) -> float:
        """That a token of this confidence stands if those before it do."""
        own = _bin(confidence)
        return (self._hits[own] + PRIOR * confidence) / (self._tries[own] + PRIOR)

    def reach(self, confidences: Sequence[float]) -> tuple[float, ...]:
        """For each token of a chain the chance that it stands together with all before it."""
        found: list[float] = []
        chance = 1.0
        for confidence in confidences:
            chance *= self.chance(confidence)
            found.append(chance)
        return tuple(found)

    def judged(self, confidences: Sequence[float], accepted: int) -> None:
        """The first `accepted` tokens of a chain stand; of those after the next one nothing is known."""
        for place, confidence in enumerate(confidences[: accepted + 1]):
            own, keep = _bin(confidence), kept(1, HALF_LIFE)
            self._hits[own] = keep * self._hits[own] + (place < accepted)
            self._tries[own] = keep * self._tries[own] + 1


def _bin(confidence: float) -> int:
    return min(BINS - 1, int(confidence * BINS))
