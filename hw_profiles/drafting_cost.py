"""What a drafter beside the target costs: seconds that its drafts of one step take, learned from the steps themselves.

    seconds ~ pass_s * longest draft + token_s * tokens of all drafts

A model drafts one token of every session in each of its passes, so that the longest draft says how many passes there
are. Tables and lookup have no passes; then `token_s` alone is above 0. Least squares with both numbers >= 0; older
steps fade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hw_profiles.fading import kept

HALF_LIFE = 200.0  # steps after which half of what was learned is forgotten (chosen: some seconds)
PRIOR = 4.0  # steps that the first guess counts for (chosen)


@dataclass(frozen=True)
class DraftingCost:
    """As it was known at one moment. The defaults are of tables: no passes, microseconds a token."""

    pass_s: float = 0.0
    token_s: float = 1e-5

    def seconds(self, longest: Any, tokens: Any) -> Any:
        """Of drafts of `tokens` tokens together, the longest of which has `longest`: numbers, or arrays."""
        return self.pass_s * longest + self.token_s * tokens


class DraftingCostModel:
    """Learns a `DraftingCost`; `cost` is what it knows now."""

    def __init__(self, guess: DraftingCost = DraftingCost()) -> None:
        self.cost = guess
        # Sums over steps of longest^2, longest * tokens, tokens^2, longest * seconds, tokens * seconds
        self._sums = [PRIOR, 0.0, PRIOR, PRIOR * guess.pass_s, PRIOR * guess.token_s]

    def observe(self, lengths: Sequence[int], seconds: float) -> None:
        """A step drafted chains of these lengths, not all 0, in so many seconds."""
        longest, tokens, keep = max(lengths), sum(lengths), kept(1, HALF_LIFE)
        assert longest > 0, "something was drafted"
        news = (longest**2, longest * tokens, tokens**2, longest * seconds, tokens * seconds)
        self._sums = [keep * old + new for old, new in zip(self._sums, news)]
        self.cost = _solved(*self._sums)


def _solved(passes: float, both: float, tokens: float, of_passes: float, of_tokens: float) -> DraftingCost:
    """The least squares with both numbers >= 0: where one would be below, it is 0 and the other one alone is left."""
    determinant = passes * tokens - both**2
    pass_s = (
        (of_passes * tokens - of_tokens * both) / determinant
        if determinant > 1e-9 * passes * tokens
        else -1.0
    )
    token_s = (of_tokens * passes - of_passes * both) / determinant if pass_s >= 0 else -1.0
    if pass_s >= 0 and token_s >= 0:
        return DraftingCost(pass_s, token_s)
    alone = DraftingCost(of_passes / passes, 0.0), DraftingCost(0.0, of_tokens / tokens)
    # What a single number explains is the square of its right-hand side over its sum of squares.
    return alone[of_passes**2 / passes < of_tokens**2 / tokens]
