"""Seconds of moving KV between the memory of an accelerator and its host's, against those of computing it again."""

from __future__ import annotations

from math import ceil

from hw_profiles.fading import FadingRatio
from hw_profiles.step_cost import HardwareProfile

# Copies after which half of what they showed is forgotten, and blocks of a copy that is assumed beforehand. Chosen.
COPIES, PRIOR_BLOCKS = 16.0, 4


class SwapCost:
    """Of copies in one direction, as far as they have shown it."""

    def __init__(self, block_bytes: int, bytes_s: float) -> None:
        """`block_bytes`: of a KV block; `bytes_s`: bytes a second that are assumed."""
        self.block_bytes = block_bytes
        assumed = PRIOR_BLOCKS * block_bytes
        self._seen = FadingRatio(COPIES, assumed / bytes_s, assumed)

    def seconds(self, blocks: float) -> float:
        """To copy so many blocks."""
        return blocks * self.block_bytes * self._seen.ratio

    def observe(self, blocks: int, seconds: float) -> None:
        """A copy of so many blocks took `seconds`."""
        self._seen.add(seconds, blocks * self.block_bytes)


def recompute_s(profile: HardwareProfile, first: int, last: int) -> float:
    """Seconds in which the target computes positions [first, last) of one text again, in full steps of its own.

    In a step with other sessions it reads no weights of its own, but all of these wait longer.
    """
    if last <= first:
        return 0.0
    steps = ceil((last - first) / profile.max_step_tokens)
    tokens = (last - first) / steps
    # The middle piece stands for all: what a step costs is linear in the text that it reads.
    return steps * profile.cost.verify_s(tokens, (first + last + tokens) / 2, 1)
