"""Chain or tree: the shape that commits more tokens a second, as measured; trials of the others become rare when they
change nothing."""

from __future__ import annotations

from hw_profiles.fading import FadingRatio

# Chosen: a trial is as long as one of drafts (gate.py), and the gaps keep trials under 1 % of all rounds in the end.
ROUNDS = 4  # of a trial
FIRST_GAP, LONGEST_GAP = 24, 768  # rounds between two trials
HALF_LIFE = 48.0  # rounds after which half of what was measured is forgotten
BETTER = 1.03  # a shape takes over when it is this many times as fast: less is noise
CHAIN = 0  # nodes of the tree that stands for a chain


class TreeChoice:
    """Nodes of the next block, at most `most`; 0 = a chain."""

    def __init__(self, most: int) -> None:
        self._sizes = sorted({CHAIN, most // 4, most}) if most else [CHAIN]
        self._speeds = {size: FadingRatio(HALF_LIFE) for size in self._sizes}  # tokens/s of each shape
        self._gap, self._until = FIRST_GAP, ROUNDS
        self._rounds = 0
        self._settled, self._on_trial = CHAIN, False
        self.present = self._sizes[-1]

    @property
    def rate(self) -> float:
        """Tokens/s of the present shape, as measured; 0 = not yet."""
        return self._speeds[self.present].ratio

    def took(self, size: int, tokens: int, seconds: float) -> None:
        """A block of `size` nodes committed `tokens` tokens in `seconds`; a tree that was smaller than asked for
        counts as the one that was asked for."""
        if len(self._sizes) == 1:
            return
        shape = CHAIN if size == CHAIN else (self.present or self._sizes[-1])
        self._speeds[shape].add(tokens, seconds)
        self._rounds += 1
        if self._rounds >= self._until:
            self._change()

    def _change(self) -> None:
        """Begin or end a trial."""
        unknown = [size for size in self._sizes if self._speeds[size].seen < ROUNDS]
        if unknown:
            self.present, self._until = unknown[-1], self._rounds + ROUNDS
            return
        best = max(self._sizes, key=self._rate_of)
        if best != self._settled and self._rate_of(best) > BETTER * self._rate_of(self._settled):
            self._settled, self._gap, self._on_trial = best, FIRST_GAP, False
        elif self._on_trial:
            self._gap, self._on_trial = min(2 * self._gap, LONGEST_GAP), False
        if self.present == self._settled and self._rounds >= self._until:
            self._begin_trial()
        else:
            self.present, self._until = self._settled, self._rounds + self._gap

    def _begin_trial(self) -> None:
        """Try the best of the other shapes."""
        self._on_trial = True
        self.present = max((size for size in self._sizes if size != self._settled), key=self._rate_of)
        self._until = self._rounds + ROUNDS

    def _rate_of(self, size: int) -> float:
        return self._speeds[size].ratio
