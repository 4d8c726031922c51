"""What a device learns of its own drafting from what happens anyway: acceptance, its speed, rounds, and the server.

Pure: whoever keeps these says what happened, and how many seconds it took on his clock. Everything fades, so that a
device which gets hot, a text that gets easier and a link that gets worse are followed.
"""

from __future__ import annotations

from collections import deque

import numpy as np

DEEPEST = 32  # positions of a block that are told apart; deeper ones are like the last
# What is believed before anything is seen, and how many draft tokens that counts for.
FIRST, LATER, BELIEF = 0.65, 0.75, 6.0
ALIKE = 8.0  # draft tokens for which the mean of all later positions counts at each of them
ROUNDS, TIMES = 96.0, 32.0  # after so many rounds half of the acceptance, or of the times seen, is forgotten
STREAM = 48.0  # the same of tokens that the server decoded by itself
# Rounds differ by this share before it is known; a slope, and a stair, usually are this share of a round, and the
# hidden part of drafting this share of it.
NOISE, SLOPE, STAIR, HIDDEN = 0.3, 0.1, 0.1, 0.4
# Rounds for which the line counts against those with so many fresh tokens, at least and at most
STEADY = (2.0, 12.0)
SPEEDS = 9  # latest draft tokens whose times count
OUTAGE = 6.0  # times the mean: what takes longer tells of an outage, not of the next round
DOUBTFUL = 0.15  # of what was learned is kept when nothing was heard for long


class Acceptance:
    """Chance of each token of a block, given that those before it stand."""

    def __init__(self) -> None:
        self._tries, self._hits = [0.0] * DEEPEST, [0.0] * DEEPEST

    def judged(self, length: int, accepted: int) -> None:
        """Of a block of `length` >= 1 tokens so many stand; what comes after the first wrong one tells nothing."""
        self.fade(0.5 ** (1 / ROUNDS))
        for index in range(min(length, accepted + 1, DEEPEST)):
            self._tries[index] += 1
            self._hits[index] += index < accepted

    def fade(self, keep: float) -> None:
        """Keep this share of everything."""
        self._tries = [tries * keep for tries in self._tries]
        self._hits = [hits * keep for hits in self._hits]

    def chances(self, count: int) -> tuple[float, ...]:
        """Of the first `count` tokens. Few tries at a position are filled up with the mean of the later ones."""
        first = (self._hits[0] + FIRST * BELIEF) / (self._tries[0] + BELIEF)
        later = (sum(self._hits[1:]) + LATER * BELIEF) / (sum(self._tries[1:]) + BELIEF)
        each = [
            (hits + later * ALIKE) / (tries + ALIKE) for hits, tries in zip(self._hits[1:], self._tries[1:])
        ]
        return (first, *each, *([later] * max(0, count - DEEPEST)))[:count]


class RoundTimes:
    """Seconds from a block to its verdict: R = base + slope * length - hidden * drafting.

    The slope is what a longer block costs the link and the server. The server decides in steps, and a block that comes
    earlier may only wait longer for the next one: `hidden` is that share of the drafting, in [0, 1]. A regression in
    the mean, with the belief that slope and hidden are 0, which counts for more where rounds differ by chance. Steps
    make stairs of that line: what rounds with so many freshly drafted tokens deviate from it is kept beside.
    """

    def __init__(self) -> None:
        self._products, self._targets = np.zeros((3, 3)), np.zeros(3)
        # By freshly drafted tokens: sums of 1, length, drafting and seconds.
        self._stairs = np.zeros((DEEPEST, 4))
        self._errors = 0.0  # squared, of forecasts: sum
        self.rounds = 0  # that were seen since the beginning
        self.base_s, self.slope_s, self.hidden = 0.0, 0.0, 0.0

    def took(self, seconds: float, length: int, drafting_s: float, fresh: int) -> None:
        """A verdict came `seconds` after a block of `length` tokens, and that `drafting_s` after the verdict before,
        as `fresh` of its tokens had to be drafted first."""
        row = np.array((1.0, length, -drafting_s))
        if self.rounds:
            seconds = min(seconds, OUTAGE * self.mean_s) if self.rounds > 3 else seconds
            error = seconds - float(row @ (self.base_s, self.slope_s, self.hidden))
        else:
            error = NOISE * seconds
        self.fade(0.5 ** (1 / TIMES))
        self._errors += error * error
        self._products += np.outer(row, row)
        self._targets += seconds * row
        self._stairs[min(fresh, DEEPEST - 1)] += (1.0, length, drafting_s, seconds)
        self.rounds += 1
        self._solve()

    @property
    def mean_s(self) -> float:
        """From a block to its verdict; 0 = not known."""
        return float(self._targets[0] / self._products[0, 0]) if self.rounds else 0.0

    def deviations(self) -> tuple[float, ...]:
        """Seconds that rounds with 0, 1, 2, ... freshly drafted tokens take beyond the line; 0 where none were seen."""
        if not self.rounds:
            return ()
        rounds, lengths, drafting, seconds = self._stairs.T
        line = self.base_s * rounds + self.slope_s * lengths - self.hidden * drafting
        steady = float(np.clip(self._doubt(STAIR), *STEADY))
        return tuple(((seconds - line) / (rounds + steady)).tolist())

    def fade(self, keep: float) -> None:
        """Keep this share of everything."""
        self._products *= keep
        self._targets *= keep
        self._stairs *= keep
        self._errors *= keep

    def _doubt(self, usual: float) -> float:
        """Rounds that must be seen of something that usually is `usual` mean rounds large, to be believed by half."""
        return max(self._errors / float(self._products[0, 0]), 1e-18) / (usual * self.mean_s) ** 2

    def _solve(self) -> None:
        weight, mean_s = self._products[0, 0], self.mean_s
        means = self._products[0, 1:] / weight
        spread = self._products[1:, 1:] - weight * np.outer(means, means)
        common = self._targets[1:] - weight * means * mean_s
        belief = (self._doubt(SLOPE), max(self._doubt(HIDDEN) * mean_s**2, 1e-18))
        slope, hidden = np.linalg.solve(spread + np.diag(belief), common)
        self.slope_s = float(np.clip(slope, 0.0, mean_s / 3))
        self.hidden = float(np.clip(hidden, 0.0, 1.0))
        fitted = mean_s - self.slope_s * float(means[0]) - self.hidden * float(means[1])
        self.base_s = max(fitted, 0.1 * mean_s)


class DraftPace:
    """Seconds to draft a token: the mean of the latest ones but the slowest, for now and then something interferes."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=SPEEDS)

    def took(self, seconds: float) -> None:
        """One token took so long."""
        self._latest.append(seconds)

    def forget(self) -> None:
        """What was seen is long ago."""
        self._latest.clear()

    @property
    def token_s(self) -> float | None:
        """None: nothing was drafted yet."""
        latest = self._latest
        if len(latest) < 3:
            return min(latest, default=None)
        return (sum(latest) - max(latest)) / (len(latest) - 1)


class Streamed:
    """How fast the server is when it decodes by itself."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self.heard = 0  # tokens since the beginning

    def took(self, tokens: int, seconds: float) -> None:
        """So many tokens came `seconds` after those before."""
        if self.heard > 4:
            seconds = min(seconds, OUTAGE * tokens * self._seconds / self._tokens)
        keep = 0.5 ** (tokens / STREAM)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds
        self.heard += tokens

    @property
    def rate(self) -> float | None:
        """Tokens/s; None: not heard yet."""
        return self._tokens / self._seconds if self.heard >= 2 and self._seconds > 0 else None


class LookAheadHits:
    """How often look-ahead has something ready, beside how often the chances of acceptance foretell it."""

    def __init__(self) -> None:
        self._placed, self._foretold, self._won = 8.0, 3.0, 3.0

    def placed(self, chance: float) -> None:
        """A block was judged whose bet would be won with that chance."""
        keep = 0.5 ** (1 / ROUNDS)
        self._placed = self._placed * keep + 1
        self._foretold = self._foretold * keep + chance
        self._won *= keep

    def won(self) -> None:
        """A block began with tokens at hand."""
        self._won += 1

    @property
    def luck(self) -> float:
        """Won bets for each one foretold."""
        return self._won / max(self._foretold, 0.1)

    @property
    def share(self) -> float:
        """Of the bets placed, those that are won."""
        return min(1.0, self._won / self._placed)
