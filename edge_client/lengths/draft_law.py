"""The law of one device: how many tokens a second its drafts are worth, and which length is worth the most.

A round with a block of k tokens commits E(k) = 1 + reach(1) + ... + reach(k) of them, reach(i) being the chance that
the first i all stand. It takes the time from the verdict before to the block, which is drafting, and from the block to
its verdict. With look-ahead a device that has won its bet (whole block accepted, bonus token guessed) starts the next
round with tokens at hand, "warm"; else it starts "cold". Two states, each with a best length: a small decision process,
solved by policy iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LIKELIEST = 0.98  # a bet is never surer than this
ITERATIONS = 8  # of the policy; three are the rule


class Lengths(NamedTuple):
    """The best lengths, and what they come to."""

    cold: int
    warm: int
    rate: float  # tokens/s in the long run
    head_start: float  # tokens that a warm start is worth beyond a cold one


@dataclass(frozen=True)
class DraftLaw:
    """Times in seconds. Only lengths from 1 to `top` are looked at; arrays are indexed by the length, from 0 on."""

    chances: tuple[float, ...]  # of each token, given that those before it stand; at least top + 1 of them
    base_s: float  # from an empty block to its verdict
    slope_s: float  # by so much each token of a block makes that longer
    token_s: float  # to draft a token
    away_s: float  # that a block usually is away
    top: int
    # Share of drafting that costs nothing, as the server would have let the block wait anyway
    hidden: float = 0.0
    luck: float = 1.0  # won bets for each one that the chances foretell
    bet: float = 0.4  # share of the bets that are won
    looks_ahead: bool = True
    # Seconds beyond that of a round with 0, 1, 2, ... tokens drafted in it
    deviations: tuple[float, ...] = ()

    @cached_property
    def reach(self) -> Numbers:
        """Chance that the first k tokens stand, for k = 0, 1, ..., top + 1."""
        return np.fromiter(accumulate((1.0, *self.chances[: self.top + 1]), mul), np.float64)

    @cached_property
    def expected(self) -> Numbers:
        """E(k) for k = 0, 1, ..., top."""
        return np.cumsum(self.reach[:-1])

    @cached_property
    def _in_time(self) -> float:
        """Tokens of the next block that can be drafted in a round; one pass goes into the guess of the bonus token."""
        return max(0.0, self.away_s / self.token_s - 1) if self.looks_ahead and self.token_s > 0 else 0.0

    @cached_property
    def ahead(self) -> int:
        """Tokens of the next block to draft ahead, 0 = none.

        A pass that the verdict interrupts saves a part of itself if the bet is won, and else delays the next block by
        the rest: it is begun where the first outweighs the second.
        """
        return min(self.top, int(self._in_time + self.bet))

    @cached_property
    def ready(self) -> float:
        """Tokens at hand when a bet is won."""
        return min(float(self.ahead), self._in_time)

    @cached_property
    def won(self) -> Numbers:
        """Chance that the bet on a whole block of k tokens and its bonus token is won."""
        return np.minimum(LIKELIEST, self.luck * self.reach[1:]) if self.ready else np.zeros(self.top + 1)

    @cached_property
    def cold_s(self) -> Numbers:
        """See `rounds_s`, with nothing at hand; a pass under way when the verdict comes has to end first."""
        return self.rounds_s(0.0) + (1 - self.hidden) * self.token_s * (self.ahead - self.ready)

    @cached_property
    def warm_s(self) -> Numbers:
        """See `rounds_s`, after a bet was won."""
        return self.rounds_s(self.ready)

    def rounds_s(self, ready: float) -> Numbers:
        """From a verdict to the next one, with a block of k tokens of which `ready` are at hand."""
        lengths = np.arange(self.top + 1)
        fresh = np.maximum(0.0, lengths - ready)
        line = self.base_s + self.slope_s * lengths + (1 - self.hidden) * self.token_s * fresh
        if self.deviations:
            steps = np.minimum(np.rint(fresh).astype(int), len(self.deviations) - 1)
            line += np.array(self.deviations)[steps]
        return line

    def best(self) -> Lengths:
        """The lengths of the best policy."""
        found = self._value(min(4, self.top), self.top)
        for _ in range(ITERATIONS):
            better = self._value(self._best(self.cold_s, found), self._best(self.warm_s, found))
            if better.rate <= found.rate * (1 + 1e-9):
                break
            found = better
        return found

    def length(self, ready: float, best: Lengths) -> int:
        """The length that is worth the most where `ready` tokens are at hand."""
        return self._best(self.rounds_s(ready), best)

    def _best(self, rounds_s: Numbers, best: Lengths) -> int:
        """A block is worth the tokens it commits and promises, less those that its time is worth."""
        worth = self.expected - best.rate * rounds_s + self.won * best.head_start
        return 1 + int(worth[1:].argmax())

    def _value(self, cold: int, warm: int) -> Lengths:
        """What the policy of these two lengths comes to: a cycle is a cold round and the warm ones that follow it."""
        again = 1 - float(self.won[warm])
        warm_rounds = float(self.won[cold]) / again
        cold_s, warm_s = float(self.cold_s[cold]), float(self.warm_s[warm])
        tokens = float(self.expected[cold]) + warm_rounds * float(self.expected[warm])
        rate = tokens / (cold_s + warm_rounds * warm_s)
        head_start = (float(self.expected[warm]) - rate * warm_s) / again
        return Lengths(cold, warm, rate, max(0.0, head_start) if self.ready else 0.0)
