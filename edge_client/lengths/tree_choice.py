"""Chain or tree: whichever commits more tokens a second, as measured; trials of the other become rare when they show
nothing."""

from __future__ import annotations

ROUNDS = 4  # of a trial
FIRST_GAP, LONGEST_GAP = 24, 768  # rounds between two trials
MEMORY = 48.0  # rounds after which half is forgotten
BETTER = 1.03  # times as fast must a shape be that takes over
CHAIN = 0  # nodes of a tree that is none


class ShapeRate:
    """How blocks of one shape fare."""

    def __init__(self) -> None:
        self.rounds, self._tokens, self._seconds = 0, 0.0, 0.0

    def took(self, tokens: int, seconds: float) -> None:
        """A round committed so many tokens in so many seconds."""
        keep = 0.5 ** (1 / MEMORY)
        self._tokens, self._seconds = self._tokens * keep + tokens, self._seconds * keep + seconds
        self.rounds += 1

    @property
    def rate(self) -> float:
        """Tokens/s; 0 = nothing is known."""
        return self._tokens / self._seconds if self._seconds else 0.0


class TreeChoice:
    """Nodes of the next block, at most `most`; 0 = a chain."""

    def __init__(self, most: int) -> None:
        self._sizes = sorted({CHAIN, most // 4, most}) if most else [CHAIN]
        self._shapes = {size: ShapeRate() for size in self._sizes}
        self._gap, self._until = FIRST_GAP, ROUNDS
        self._rounds = 0
        self._settled, self._trial = CHAIN, 0  # index into the sizes of what is tried, 0 = nothing
        self.present = self._sizes[-1]

    @property
    def rate(self) -> float:
        """Tokens/s of the present shape, as measured; 0 = not yet."""
        return self._shapes[self.present].rate

    def took(self, size: int, tokens: int, seconds: float) -> None:
        """A block of this shape is over; a tree that was smaller than asked for counts for what was asked for."""
        if len(self._sizes) == 1:
            return
        shape = self._shapes[CHAIN if size == CHAIN else (self.present or self._sizes[-1])]
        shape.took(tokens, seconds)
        self._rounds += 1
        if self._rounds >= self._until:
            self._turn()

    def _turn(self) -> None:
        """A trial begins or ends."""
        unknown = [size for size in self._sizes if self._shapes[size].rounds < ROUNDS]
        if unknown:
            self.present, self._until = unknown[-1], self._rounds + ROUNDS
            return
        best = max(self._sizes, key=lambda size: self._shapes[size].rate)
        if best != self._settled and self._shapes[best].rate > BETTER * self._shapes[self._settled].rate:
            self._settled, self._gap, self._trial = best, FIRST_GAP, 0
        elif self._trial:
            self._gap, self._trial = min(2 * self._gap, LONGEST_GAP), 0
        if self.present == self._settled and self._rounds >= self._until:
            self._begin_trial()
        else:
            self.present, self._until = self._settled, self._rounds + self._gap

    def _begin_trial(self) -> None:
        """Of the best of the others."""
        others = [size for size in self._sizes if size != self._settled]
        self._trial = 1
        self.present = max(others, key=lambda size: self._shapes[size].rate)
        self._until = self._rounds + ROUNDS
