"""Calibration of draft confidences: the chance that a token of a given confidence is accepted.

A drafter gives each token a confidence. The server learns how often such tokens are accepted, for each device and for
its own drafter. A drafter that overstates its confidences therefore gets fewer tokens verified; it never changes a
text.
"""

from __future__ import annotations

from collections.abc import Iterable

from hw_profiles.fading import remaining_share

BINS = 10  # of confidences from 0 to 1, equally wide
HALF_LIFE = 512.0  # tokens of a bin after which an observation counts half (chosen)
PRIOR = 8.0  # weight of the prior, in tokens (chosen)
UNTOLD = 1.0  # the confidence of tokens from a drafter without confidences (`DraftToken`)


class ConfidenceCalibration:
    """The calibration of one drafter."""

    __slots__ = ("_hits", "_tries", "_usual")

    def __init__(self, usual: ConfidenceCalibration | None = None) -> None:
        """`usual`: calibration of all drafters of the tenant, which also learns from this one; None = confidences are
        taken as chances."""
        self._usual = usual
        self._hits, self._tries = [0.0] * BINS, [0.0] * BINS

    def chance(self, confidence: float) -> float:
        """The chance that a token of this confidence is accepted if all before it are."""
        own = _bin(confidence)
        usual = confidence if self._usual is None else self._usual.chance(confidence)
        return (self._hits[own] + PRIOR * usual) / (self._tries[own] + PRIOR)

    def add_verdict(self, tried: Iterable[tuple[float, bool]]) -> None:
        """Learn from tokens whose predecessors were all accepted: their confidences, and whether they were accepted."""
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
