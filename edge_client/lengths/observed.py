"""What a device learns of its own drafting from what happens anyway: acceptance by position, and times of rounds.

`VerdictTimes` keeps when verdicts came: how long a device was at work on a block.

Pure: the caller says what happened and how many seconds it took. Everything fades, so that the estimates follow a
device that gets hot, a text that gets easier and a link that gets worse.
"""

from collections import OrderedDict

import numpy as np

from edge_client.lengths.learned_sums import LARGEST, Sums
from hw_profiles.fading import FadingRatio, kept

# The constants down to DOUBTFUL are chosen: the values with which policy `adaptive` comes closest to the best fixed
# length on the simulated devices of tests/test_adaptive.py.
DEEPEST = 32  # positions of a block with a chance of their own; deeper ones are like the last
# Assumed before the first verdict: chances of the first and of later tokens, and the draft tokens they count for.
# The recorded pairs of the tiny family lie near them (docs/drafters.md).
FIRST, LATER, BELIEF = 0.75, 0.8, 3.0
ALIKE = 8.0  # draft tokens for which the mean of all later positions counts at each of them
ROUNDS, TIMES = 96.0, 32.0  # half-lives in rounds, of acceptance and of times
STREAM = 48.0  # half-life of the server's own speed, in tokens
# Before a round is seen: rounds differ by this share. Usual sizes, as shares of a round (of drafting for the last
# one): the slope, the deviation of a stair, and the hidden part.
NOISE, SLOPE, STAIR, HIDDEN = 0.3, 0.1, 0.1, 0.4
STEADY = (2.0, 12.0)  # rounds for which the line counts against a stair: at least, at most
OUTAGE = 6.0  # times the mean: a longer wait tells of an outage, not of the next round
OUTAGE_AFTER = 4  # tokens that must be seen before a wait can pass for an outage
IN_DOUBT = 3.0  # rounds for which all times before a rest count beside the rounds of a trial
SIGNS = np.array((1.0, 1.0, -1.0))  # of the columns of `RoundTimes`
UPPER = np.triu_indices(3)  # of a symmetric matrix, what it does not say twice
ROUNDED = 1e-4  # added to squares from a file, whose few digits would else let them be less than they can
DOUBTFUL = 0.15  # share of the weight of everything learned that is left after a long silence

OPEN_BLOCKS = 64  # verdicts of which the next block is awaited
# A block comes at most PAUSE_S after the verdict before it, beyond SLOWER times what its tokens usually take (chosen).
PAUSE_S, SLOWER = 1.0, 4.0


class Acceptance:
    """Chance of each token of a block, given that those before it stand."""

    def __init__(self) -> None:
        self._tries, self._hits = [0.0] * DEEPEST, [0.0] * DEEPEST

    def judged(self, length: int, accepted: int) -> None:
        """The first `accepted` of `length` >= 1 tokens stand. Tokens after the first wrong one tell nothing."""
        self.fade(kept(1, ROUNDS))
        for index in range(min(length, accepted + 1, DEEPEST)):
            self._tries[index] += 1
            self._hits[index] += index < accepted

    def fade(self, keep: float) -> None:
        """Keep this share of the weight of everything."""
        self._tries = [tries * keep for tries in self._tries]
        self._hits = [hits * keep for hits in self._hits]

    @property
    def numbers(self) -> tuple[Sums, Sums]:
        """Tries and hits by position."""
        return tuple(self._tries), tuple(self._hits)

    def recall(self, tries: Sums, hits: Sums) -> None:
        """Go on from what `numbers` was, of another start."""
        self._tries, self._hits = list(tries), list(hits)

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
    earlier may only wait longer for the next step: `hidden` is that share of the drafting, in [0, 1]. This is a ridge
    regression around the mean: slope and hidden are 0 until rounds show otherwise, and the more rounds differ by
    chance, the more it takes. Steps turn the line into stairs: the mean deviation of rounds with 0, 1, 2, ... freshly
    drafted tokens is kept beside it.
    """

    def __init__(self) -> None:
        self._products, self._targets = np.zeros((3, 3)), np.zeros(3)
        # By freshly drafted tokens: sums of 1, length, drafting and seconds.
        self._stairs = np.zeros((DEEPEST, 4))
        self._errors = 0.0  # sum of squared errors of forecasts
        self.rounds = 0  # since the beginning
        self.base_s, self.slope_s, self.hidden = 0.0, 0.0, 0.0

    def took(self, seconds: float, length: int, drafting_s: float, fresh: int) -> None:
        """The verdict on a block of `length` tokens came `seconds` after the block. The block came `drafting_s` after
        the verdict before it, and `fresh` of its tokens were drafted in that time."""
        row = np.array((1.0, length, -drafting_s))
        if self.rounds:
            seconds = min(seconds, OUTAGE * self.mean_s) if self.rounds > 3 else seconds
            error = seconds - float(row @ (self.base_s, self.slope_s, self.hidden))
        else:
            error = NOISE * seconds
        self.fade(kept(1, TIMES))
        self._errors += error * error
        self._products += np.outer(row, row)
        self._targets += seconds * row
        self._stairs[min(fresh, DEEPEST - 1)] += (1.0, length, drafting_s, seconds)
        self.rounds += 1
        self._solve()

    @property
    def numbers(self) -> Sums:
        """Rounds since the beginning, the sums of their products and of their times, and the errors; all are >= 0."""
        products, targets = self._products * np.outer(SIGNS, SIGNS), self._targets * SIGNS
        return (min(float(self.rounds), LARGEST), *products[UPPER].tolist(), *targets.tolist(), self._errors)

    def recall(self, numbers: Sums) -> None:
        """Go on from what `numbers` was, of another start. Raises ValueError for what no rounds have left."""
        products = np.zeros((3, 3))
        products[UPPER] = products.T[UPPER] = numbers[1:7]
        products[1:, 1:] *= 1 + ROUNDED * np.eye(2)
        if min(numbers[0], numbers[1], numbers[7]) <= 0 or np.linalg.eigvalsh(products)[0] < 0:
            raise ValueError("no sums of rounds")
        self._products, self._targets = products * np.outer(SIGNS, SIGNS), np.array(numbers[7:10]) * SIGNS
        self._errors, self.rounds = numbers[10], max(1, int(numbers[0]))
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
        steady = float(np.clip(self._prior_rounds(STAIR), *STEADY))
        return tuple(((seconds - line) / (rounds + steady)).tolist())

    def fade(self, keep: float) -> None:
        """Keep this share of the weight of everything."""
        self._products *= keep
        self._targets *= keep
        self._stairs *= keep
        self._errors *= keep

    def doubt(self) -> None:
        """What was learned before a rest counts for IN_DOUBT rounds at most: the device may have been busy."""
        self.fade(min(1.0, IN_DOUBT / float(self._products[0, 0])))

    def _prior_rounds(self, usual: float) -> float:
        """Rounds after which an effect of usual size, `usual` mean rounds, counts for half."""
        return max(self._errors / float(self._products[0, 0]), 1e-18) / (usual * self.mean_s) ** 2

    def _solve(self) -> None:
        weight, mean_s = self._products[0, 0], self.mean_s
        means = self._products[0, 1:] / weight
        spread = self._products[1:, 1:] - weight * np.outer(means, means)
        common = self._targets[1:] - weight * means * mean_s
        prior = (self._prior_rounds(SLOPE), max(self._prior_rounds(HIDDEN) * mean_s**2, 1e-18))
        slope, hidden = np.linalg.solve(spread + np.diag(prior), common)
        self.slope_s = float(np.clip(slope, 0.0, mean_s / 3))
        self.hidden = float(np.clip(hidden, 0.0, 1.0))
        fitted = mean_s - self.slope_s * float(means[0]) - self.hidden * float(means[1])
        self.base_s = max(fitted, 0.1 * mean_s)


def streamed(speed: FadingRatio, tokens: int, seconds: float) -> None:
    """Add to the server's own speed, in tokens/s: `tokens` tokens came `seconds` after the ones before."""
    if speed.seen > OUTAGE_AFTER:
        seconds = min(seconds, OUTAGE * tokens * speed.below / speed.above)
    speed.add(tokens, seconds, age=tokens)


def server_rate(speed: FadingRatio) -> float | None:
    """Tokens/s of the server's own decoding; None: fewer than two tokens are heard."""
    return speed.ratio if speed.seen >= 2 and speed.below > 0 else None


def shortest_round(speed: FadingRatio, link_s: float | None) -> float:
    """Seconds that a round takes at least: a step of the server, and the link; 0 = the server was not heard yet."""
    rate = server_rate(speed)
    return 1 / rate + (link_s or 0.0) if rate else 0.0


class VerdictTimes:
    """The latest verdicts of all sequences of a device, by the base of the block that follows. Times in seconds."""

    def __init__(self) -> None:
        self._ends: OrderedDict[int, float] = OrderedDict()

    def came(self, base: int, now: float) -> None:
        """A verdict came, and the next block follows the first `base` tokens."""
        self._ends[base] = now
        if len(self._ends) > OPEN_BLOCKS:
            self._ends.popitem(last=False)

    def until(self, base: int, sent_at: float, usual_s: float) -> float:
        """From the verdict before to a block that was sent at that time.

        `usual_s`: what its tokens usually take, for a verdict that is not known.
        """
        began = self._ends.pop(base, None)
        # A much earlier end belongs to another answer, which had the same length by chance.
        if began is None or sent_at - began > PAUSE_S + SLOWER * usual_s:
            return usual_s
        return max(0.0, sent_at - began)
