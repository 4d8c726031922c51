"""What a drafter beside the target costs: seconds that its drafts of one step take, learned from the steps themselves.

    seconds ~ pass_s * passes + token_s * tokens of all drafts + read_s * tokens of text that it reads first

A model drafts one token of every session in each of its passes, so that the longest draft says how many passes there
are. A draft head drafts all of them in one. Tables and lookup have no passes. Least squares with all numbers >= 0;
older steps fade.
"""

from __future__ import annotations

import numpy as np

from hw_profiles.fading import remaining_share
from hw_profiles.least_squares import non_negative
from hw_profiles.step_cost import DraftingCost

HALF_LIFE = 200.0  # steps after which half of what was learned is forgotten (chosen: some seconds)
PRIOR = 0.5  # steps, of one token of each kind, that the first guess counts for (chosen)


class DraftingCostModel:
    """Learns a `DraftingCost`; `cost` is what it knows now."""

    def __init__(self, guess: DraftingCost = DraftingCost()) -> None:
        self.cost = guess
        self._max_passes = guess.max_passes
        self._gram = PRIOR * np.eye(3)
        self._right = PRIOR * np.array([guess.pass_s, guess.token_s, guess.read_s])

    def observe(self, longest: int, tokens: int, read: int, seconds: float) -> None:
        """A step whose drafting took `seconds`; see `DraftingCost.seconds`."""
        row, keep = np.array([self.cost.passes(longest), tokens, read], float), remaining_share(1, HALF_LIFE)
        self._gram = keep * self._gram + np.outer(row, row)
        self._right = keep * self._right + row * seconds
        firm = np.diag(1e-9 * self._gram.diagonal())  # solvable even if all steps are alike
        pass_s, token_s, read_s = map(float, non_negative(self._gram + firm, self._right))
        self.cost = DraftingCost(pass_s, token_s, read_s, self._max_passes, True)
