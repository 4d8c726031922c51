"""What becomes of the blocks that one level of a hierarchy sends to the next: how long they are, how much stands.

A token of the lower model stands if the upper model draws the same one, with the same noise, behind the same tokens.
That is rarer than the 1 - TV of an optimal coupling, and it is what recorded drafts show. A block of t tokens whose
first i tokens stand with the chance reach(i) commits E(t) = 1 + reach(1) + ... + reach(t) tokens, as in speculation.py.

A relay sends a block before it is full when the chance that all of it stands falls below a bound (relay/uplink.py). It
knows of each token whether the level below had drafted the same one. Levels are not independent: what two models say,
the third one says more often. So blocks with a doubtful token leave early, and the others grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from hw_profiles.speculation import Numbers, reach


@dataclass(frozen=True)
class Agreement:
    """Chances that the first, second, ... token of a block is the upper model's own, given that those before it are.

    `tables` has them for blocks of one token, of two, and so on, its last row for all longer ones; the last chance of a
    row is that of all further tokens. Rows differ because easy places follow each other: a long block begins where the
    one before it failed, a short one more often where it stood.
    """

    tables: tuple[tuple[float, ...], ...]

    @classmethod
    def uniform(cls, rate: float) -> Agreement:
        """The same chance at each place of each block."""
        return cls(((rate,),))

    def chance(self, place: int, length: int) -> float:
        """Of the token number `place` of a block of `length` tokens, from 0 on; number `length` is the guess behind."""
        row = self.tables[min(length, len(self.tables)) - 1]
        return row[min(place, len(row) - 1)]

    def reach(self, length: int) -> Numbers:
        """That the first 0, 1, ..., `length` tokens of a block of that length stand."""
        return reach([self.chance(place, length) for place in range(length)])

    def rate(self, length: int) -> float:
        """Share of the judged tokens that stand: those of blocks of `length` tokens up to the first that does not."""
        stands = self.reach(length)
        return float(stands[1:].sum() / stands[:-1].sum())


@dataclass(frozen=True)
class Dependence:
    """How far the upper one of three models follows the lower two where these agree."""

    share: float  # of the middle model's tokens, those that the lowest one had drafted as well
    both: float  # chance that the upper model says such a token, too
    other: float  # chance that it says one of the others


@dataclass(frozen=True)
class Blocks:
    """Blocks that leave at most `length` tokens long."""

    lengths: Numbers  # chance that it has 0, 1, ..., length tokens when it leaves
    tokens: Numbers  # chance that its verdict commits 0, 1, ..., length + 1 tokens
    hits: Numbers  # of `tokens`, where all of the block stands, and the guess of the token behind it

    @property
    def hit(self) -> float:
        """Chance that the block stands whole, and the guess of the token behind it."""
        return float(self.hits.sum())

    @property
    def mean_tokens(self) -> float:
        """Tokens that its verdict commits."""
        return float(self.tokens @ np.arange(len(self.tokens)))

    @property
    def mean_length(self) -> float:
        """Its tokens when it leaves."""
        return float(self.lengths @ np.arange(len(self.lengths)))

    @property
    def mean_positions(self) -> float:
        """Positions that the upper model computes for it: its tokens, and the newest one before them."""
        return self.mean_length + 1


@cache
def blocks(
    agreement: Agreement, length: int, bound: float = 0.0, dependence: Dependence | None = None
) -> Blocks:
    """Blocks of `length` tokens, or fewer where the chance that all of them stand falls below `bound`.

    `dependence`: what the sender knows of single tokens; None = they are all alike to it.
    """
    rate = agreement.rate(length)
    known = dependence or Dependence(1.0, rate, rate)
    return _Growth(agreement, known, length, bound).blocks()


class _Growth:
    """A block that grows token by token: the mass of the paths with so many agreed tokens, of which so many stand."""

    def __init__(self, agreement: Agreement, known: Dependence, length: int, bound: float) -> None:
        self._agreement, self._known, self._length, self._bound = agreement, known, length, bound
        self._mean = known.share * known.both + (1 - known.share) * known.other
        self._lengths, self._tokens, self._hits = (np.zeros(length + more) for more in (1, 2, 2))

    def blocks(self) -> Blocks:
        """Grow until all have left."""
        paths = {(0, 0): 1.0}
        for size in range(1, self._length + 1):
            paths = self._leave(self._grown(paths, size), size)
        return Blocks(self._lengths, self._tokens, self._hits)

    def _grown(self, paths: dict[tuple[int, int], float], size: int) -> dict[tuple[int, int], float]:
        """One more token, with which there are `size`."""
        grown: dict[tuple[int, int], float] = {}
        for (agreed, stand), mass in paths.items():
            for more, share, chance in self._tokens_at(size - 1):
                stands = chance if stand == size - 1 else 0.0
                for key, part in (((agreed + more, stand + 1), stands), ((agreed + more, stand), 1 - stands)):
                    if part and share:
                        grown[key] = grown.get(key, 0.0) + mass * share * part
        return grown

    def _tokens_at(self, place: int) -> list[tuple[int, float, float]]:
        """Both kinds of tokens there: whether it is agreed, its share, and the chance that it stands."""
        known = self._known
        scale = self._agreement.chance(place, self._length) / self._mean if self._mean else 0.0
        return [
            (1, known.share, min(1.0, known.both * scale)),
            (0, 1 - known.share, min(1.0, known.other * scale)),
        ]

    def _leave(self, paths: dict[tuple[int, int], float], size: int) -> dict[tuple[int, int], float]:
        """Blocks that leave with `size` tokens are counted, the others stay."""
        staying = {}
        for (agreed, stand), mass in paths.items():
            chance = self._known.both**agreed * self._known.other ** (size - agreed)
            if size < self._length and chance >= self._bound:
                staying[agreed, stand] = mass
                continue
            self._lengths[size] += mass
            self._tokens[stand + 1] += mass
            if stand == size:
                self._hits[size + 1] += mass * self._agreement.chance(size, self._length)
        return staying
