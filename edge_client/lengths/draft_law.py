"""The law of one device: how many tokens a second its drafts are worth, and which length is worth the most.

A round with a block of k tokens commits E(k) tokens on average (hw_profiles/speculation.py). It takes the time from
the verdict before to the block, which is drafting, and from the block to its verdict. With look-ahead the device
guesses that the whole block is accepted, guesses the bonus token, and drafts on. If both guesses are right, the next
round is "warm": it starts with tokens at hand. Else it is "cold". Each of the two states has a best length; they are
a Markov decision process with two states, solved by policy iteration (Howard 1960).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hw_profiles.speculation import Numbers, reach

MOST_CERTAIN = 0.98  # upper bound of the chance of a hit: keeps a cycle finite (chosen)
ITERATIONS = 8  # of the policy iteration; it mostly ends after three
FIRST_LENGTH = 4  # cold length that the iteration starts from (chosen: any start converges)


@dataclass(frozen=True)
class DraftLaw:
    """Times in seconds. Only lengths from 1 to `top` count; arrays have the length as index, from 0 on."""

    chances: tuple[float, ...]  # of each token, given that those before it stand; at least top + 1 of them
    base_s: float  # from an empty block to its verdict
    slope_s: float  # more of that for each token of the block
    token_s: float  # to draft a token
    away_s: float  # from a usual block to its verdict
    top: int
    # Share of drafting that costs nothing: without it the block would wait for the server's next step
    hidden: float = 0.0
    hits_per_forecast: float = 1.0  # look-ahead hits for each one that the chances predict
    hit_rate: float = 0.4  # share of look-aheads that hit
    looks_ahead: bool = True
    # Seconds beyond the line of a round with 0, 1, 2, ... tokens drafted in it
    deviations: tuple[float, ...] = ()

    @cached_property
    def reach(self) -> Numbers:
        """Chance that the first k tokens stand, for k = 0, 1, ..., top + 1."""
        return reach(self.chances[: self.top + 1])

    @cached_property
    def expected(self) -> Numbers:
        """E(k) for k = 0, 1, ..., top."""
        return np.cumsum(self.reach[:-1])

    @cached_property
    def _in_time(self) -> float:
        """Tokens of the next block that a round has time for; one pass goes into the guess of the bonus token."""
        return max(0.0, self.away_s / self.token_s - 1) if self.looks_ahead and self.token_s > 0 else 0.0

    @cached_property
    def ahead(self) -> int:
        """Tokens of the next block to draft ahead, 0 = none.

        A pass that the verdict interrupts saves the part that is done if the look-ahead hits. Else it delays the next
        block by the part that is left. The device begins it where the first outweighs the second.
        """
        return min(self.top, int(self._in_time + self.hit_rate))

    @cached_property
    def ready(self) -> float:
        """Tokens at hand after a hit."""
        return min(float(self.ahead), self._in_time)

    @cached_property
    def hit(self) -> Numbers:
        """Chance of a hit behind a block of k tokens."""
        if not self.ready:
            return np.zeros(self.top + 1)
        return np.minimum(MOST_CERTAIN, self.hits_per_forecast * self.reach[1:])

    @cached_property
    def cold_s(self) -> Numbers:
        """See `rounds_s`, with nothing at hand; a pass under way when the verdict comes has to end first."""
        return self.rounds_s(0.0) + (1 - self.hidden) * self.token_s * (self.ahead - self.ready)

    @cached_property
    def warm_s(self) -> Numbers:
        """See `rounds_s`, after a hit."""
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

    @property
    def cold(self) -> int:
        """The best length of a block that starts with nothing at hand."""
        return self._best[0]

    @property
    def rate(self) -> float:
        """Tokens/s in the long run with the best lengths."""
        return self._best[1]

    def length(self, ready: float) -> int:
        """The best length where `ready` tokens are at hand."""
        return self._best_length(self.rounds_s(ready), *self._best[1:])

    @cached_property
    def _best(self) -> tuple[int, float, float]:
        """Cold length, rate and head start (see `value`) of the best policy."""
        cold = min(FIRST_LENGTH, self.top)
        rate, head_start = self.value(cold, self.top)
        for _ in range(ITERATIONS):
            colder = self._best_length(self.cold_s, rate, head_start)
            better = self.value(colder, self._best_length(self.warm_s, rate, head_start))
            if better[0] <= rate * (1 + 1e-9):
                break
            cold, (rate, head_start) = colder, better
        return cold, rate, head_start

    def _best_length(self, rounds_s: Numbers, rate: float, head_start: float) -> int:
        """The length with the largest worth."""
        return 1 + int(self._worth(rounds_s, rate, head_start)[1:].argmax())

    def _worth(self, rounds_s: Numbers, rate: float, head_start: float) -> Numbers:
        """Of each length: tokens it commits and promises, less those that its time is worth."""
        return self.expected - rate * rounds_s + self.hit * head_start

    def value(self, cold: int, warm: int) -> tuple[float, float]:
        """Of the policy of these two lengths: tokens/s in the long run, and the tokens that a warm start is worth
        beyond a cold one. A cycle is one cold round and the warm ones that follow it."""
        again = 1 - float(self.hit[warm])
        warm_rounds = float(self.hit[cold]) / again
        cold_s, warm_s = float(self.cold_s[cold]), float(self.warm_s[warm])
        tokens = float(self.expected[cold]) + warm_rounds * float(self.expected[warm])
        rate = tokens / (cold_s + warm_rounds * warm_s)
        head_start = (float(self.expected[warm]) - rate * warm_s) / again
        return rate, max(0.0, head_start) if self.ready else 0.0
