"""What a baseline that learns nothing is told for one cell: the best of a few settings.

A fixed length is one of three or four numbers. PipeSD (arXiv 2605.13319) tunes its thresholds R1 and R2 in about 16
samples; how it chooses them we do not know. Ours are a grid of 4 by 4. A product is never above its newest factor, so
R1 counts only below R2: R1 is R2, or a half, a quarter or an eighth of it. Each sample is judged as a fixed length is,
by a short simulation of the cell with recorded drafts (lab/benchmarks/cell_run.py).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import NamedTuple

from lab.testbed.baselines import LONGEST
from lab.testbed.fleet import Fleet, Group

NEWEST = (0.1, 0.3, 0.5, 0.8)  # R2: confidences of the last token
SHARES = (1 / 8, 1 / 4, 1 / 2, 1)  # R1 over R2


class Tuning(NamedTuple):
    """A draft length in tokens and, where thresholds end a block before it, those of PipeSD."""

    draft_length: int
    product: float = 0.0  # R1
    newest: float = 0.0  # R2; 0 = there are no thresholds

    def of(self, fleet: Fleet) -> Fleet:
        """The fleet with all devices told so."""
        return replace(fleet, groups=tuple(map(self._told, fleet.groups)))

    def _told(self, group: Group) -> Group:
        told = replace(group, draft_length=self.draft_length)
        if not self.newest:
            return told
        return replace(told, stop="dual-trigger", product=self.product, confidence=self.newest)


TRIGGERS = tuple(
    Tuning(LONGEST, round(newest * share, 4), newest) for newest, share in product(NEWEST, SHARES)
)
