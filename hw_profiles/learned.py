"""What a step of a target costs, learned from the steps themselves while the server runs.

    seconds ~ s * seed(tokens) + broken line(tokens) + c * contexts + d * sessions,   all coefficients >= 0

The seed is a profile or a guess. What the steps do not show (a batch size that never came) stays as in the seed, to
scale; what they show is followed within some dozen steps. Least squares of relative errors, weighted after Huber (Ann.
Math. Statist. 35, 1964): a pause of the garbage collector or of the machine counts little. Older
steps fade, and fade faster the more the predictions err to one side.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hw_profiles.fading import remaining_share
from hw_profiles.least_squares import non_negative
from hw_profiles.step_cost import Roofline, StepCost

Array = NDArray[np.float64]

# Without another source the values are chosen, on made-up machines and on the tiny target (tests/test_learned.py).
TABLE = 1024  # tokens of a step up to which costs are tabled; beyond, they go on as straight as they ended
# Tokens from which on the broken line may bend; it can take any monotone shape. A second row more than doubles a step
# of llama.cpp on a processor (SmolLM2: 16, 37 and 43 ms for 1, 2 and 3 rows), so it may bend after each of the first.
KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Rows up to which engines that pad steps do so by a few at a time, so that the first row of these costs what all do
PADDED = 32
LEARN_EVERY = 16  # steps between two fits
FIRST_FITS = (4, 8, 12)  # steps after which the first ones come
REMEMBERED = 64  # errors of the latest predictions
HUBER = 1.5  # times the median error, beyond which a step counts less (Huber: 1.345 times the deviation)
MIN_SPREAD = 0.05  # median error that is always taken for noise
HALF_LIFE = 1000.0  # steps after which half of what was learned is forgotten, at the most,
MIN_HALF_LIFE = 16.0  # at the least,
FADING = 1.5  # and in between (FADING / median of the signed errors) ** 2: noise alone is no reason to forget
MIN_SHARE = 1e-3  # of the seed that a step takes in any case

# Strength of the prior, in steps: that the cost is no more than the seed; that KV and sessions cost what the seed says,
# to scale; that the scale is that of the first steps; that the line is flat; that it is straight (both by its slopes
# per SLOPE tokens).
NO_MORE, TO_SCALE, SCALE, FLAT, STRAIGHT = 0.05, 0.5, 0.05, 0.02, 0.05
SLOPE = 16
NARROW = 8  # tokens; pieces that are shorter bend more easily, else few steps could not show what a second row costs
SEED, CONTEXTS, SESSIONS, OVERHEAD, LINE = range(5)  # columns; LINE and all after it are pieces of the line
COLUMNS = LINE + len(KNOTS)


@dataclass(frozen=True)
class LearnedCost:
    """A `StepCost` as it was known at one moment."""

    table: tuple[float, ...]  # seconds by tokens, from 0 on, without contexts and sessions; ascending
    context_s: float
    session_s: float

    @classmethod
    def of(cls, cost: StepCost) -> LearnedCost:
        """The table of another one, whose tokens, contexts and sessions must add up as they do in a roofline."""
        nothing, one = 1e-9, cost.verify_s(1, 0, 0)
        table = (
            cost.verify_s(nothing, 0, 0),
            *(cost.verify_s(tokens, 0, 0) for tokens in range(1, TABLE + 1)),
        )
        return cls(table, (cost.verify_s(1, 1e6, 0) - one) / 1e6, (cost.verify_s(1, 0, 1e3) - one) / 1e3)

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        if tokens <= 0:
            return 0.0
        below = min(int(tokens), TABLE - 1)
        left = self.table[below]
        line = left + (tokens - below) * (self.table[below + 1] - left)
        return line + contexts * self.context_s + sessions * self.session_s

    def pad(self, row_step: int) -> LearnedCost:
        """The same on an engine that computes a multiple of `row_step` rows."""
        if row_step == 1:
            return self
        places = [pad_rows(tokens, row_step) for tokens in range(len(self.table))]
        return replace(self, table=tuple([self.table[place] for place in places]))

    def times(self, factor: float) -> LearnedCost:
        """The same on a machine that takes `factor` times as long."""
        table = tuple(factor * seconds for seconds in self.table)
        return LearnedCost(table, factor * self.context_s, factor * self.session_s)


def pad_rows(tokens: int, row_step: int) -> int:
    """Rows that are computed for so many."""
    return -(-tokens // row_step) * row_step if tokens <= PADDED else tokens


class CostModel:
    """Learns what steps cost; `cost` is what it knows now, a new object whenever that has changed."""

    def __init__(self, seed: StepCost = Roofline(), row_step: int = 1) -> None:
        """`row_step`: the engine computes a multiple of so many rows, where there are few (`EngineInfo`)."""
        self.cost: StepCost = seed
        self._row_step = row_step
        self.steps = 0  # that it has learned from
        self._errors: deque[float] = deque(maxlen=REMEMBERED)  # predicted / real - 1
        self._news: list[tuple[float, float, float, float]] = []  # steps since the last fit
        self._fit = _Fit(LearnedCost.of(seed))

    @property
    def error(self) -> float:
        """Median of |predicted / real - 1| over the latest steps; 0 before the first one."""
        errors = list(self._errors)  # a copy: the caller may be another thread
        return median(map(abs, errors)) if errors else 0.0

    def observe(self, tokens: int, contexts: int, sessions: int, seconds: float) -> None:
        """A step that computed `tokens` positions of `sessions` sessions, and read `contexts` KV positions, is over."""
        if seconds <= 0:  # a clock too coarse for it
            return
        self._errors.append(self.cost.verify_s(tokens, contexts, sessions) / seconds - 1)
        self._news.append((pad_rows(tokens, self._row_step), contexts, sessions, seconds))
        self.steps += 1
        if self.steps in FIRST_FITS or self.steps % LEARN_EVERY == 0:
            self._learn()

    def _learn(self) -> None:
        news = np.array(self._news)
        self._news = []
        if self.steps == FIRST_FITS[0]:
            self._take_scale(news)
        bias = abs(median(self._errors))
        half_life = min(HALF_LIFE, max(MIN_HALF_LIFE, (FADING / max(bias, MIN_SPREAD)) ** 2))
        self._fit.learn(news, max(self.error, MIN_SPREAD), half_life)
        self.cost = self._fit.cost().pad(self._row_step)

    def _take_scale(self, news: Array) -> None:
        """Right a seed that is wrong by a factor: one of another machine, or a mere guess."""
        seed = self._fit.seed
        ratios = [seconds / seed.verify_s(*rest) for *rest, seconds in news.tolist()]
        self._fit = _Fit(seed.times(median(ratios)))
        known = self._fit.seed
        self._errors.clear()  # errors of the wrong one would pass for noise
        self._errors.extend(known.verify_s(*rest) / seconds - 1 for *rest, seconds in news.tolist())


class _Fit:
    """The regression: normal equations that fade, and their solution. Coefficients are in units of the seed."""

    def __init__(self, seed: LearnedCost) -> None:
        self.seed = seed
        self._table = np.array(seed.table)
        unit = seed.table[1]  # seconds of the smallest step: what everything else is measured by
        self._units = np.full(COLUMNS, unit)
        self._units[SEED] = 1.0
        self._units[CONTEXTS] = seed.context_s or unit / 1e5
        self._units[SESSIONS] = seed.session_s or unit / 64
        self._known = np.zeros(COLUMNS)  # the coefficients of the seed itself
        self._known[[SEED, CONTEXTS, SESSIONS]] = 1.0, float(seed.context_s > 0), float(seed.session_s > 0)
        self._prior = _prior(self._known)
        self._gram = np.zeros((COLUMNS, COLUMNS))
        self._right = np.zeros(COLUMNS)
        self._found = self._known

    def learn(self, steps: Array, spread: float, half_life: float) -> None:
        """`steps`: rows of (tokens, contexts, sessions, seconds); `spread`: median error of late; `half_life`: steps
        after which half of what was learned is forgotten."""
        rows = self._columns(steps)
        predicted, seconds = rows @ self._found, steps[:, 3]
        # Errors relative to what was predicted, so that a pause stays small; but a prediction far too high counts too.
        scale = np.clip(predicted, seconds / 100, 1.5 * seconds)
        off = np.abs(seconds - predicted) / scale
        weights = np.minimum(1.0, HUBER * spread / np.maximum(off, 1e-9))
        rows /= scale[:, None]
        keep = remaining_share(len(steps), half_life)
        weighted = rows.T * weights
        self._gram = keep * self._gram + weighted @ rows
        self._right = keep * self._right + weighted @ (seconds / scale)
        right = self._right + self._prior @ self._known
        firm = np.diag(1e-9 * self._gram.diagonal())  # solvable even if all steps are alike
        self._found = non_negative(self._gram + self._prior + firm, right)

    def cost(self) -> LearnedCost:
        found = self._found * self._units
        share = max(found[SEED], MIN_SHARE)  # no step is for nothing
        table = share * self._table + found[OVERHEAD] + _LINES @ found[LINE:]
        return LearnedCost(tuple(table.tolist()), float(found[CONTEXTS]), float(found[SESSIONS]))

    def _columns(self, steps: Array) -> Array:
        """Seconds of each column for a coefficient of 1; (steps, COLUMNS)."""
        tokens, contexts, sessions, _ = steps.T
        columns = np.ones((len(steps), COLUMNS))
        columns[:, SEED] = [self.seed.verify_s(count, 0, 0) for count in tokens.tolist()]
        columns[:, CONTEXTS], columns[:, SESSIONS] = contexts, sessions
        columns[:, LINE:] = _pieces(tokens)
        return columns * self._units


def _pieces(tokens: Array) -> Array:
    """How far along each piece of the broken line `tokens` lie, in lengths of it; (tokens, pieces)."""
    most = np.array((*_LENGTHS[:-1], np.inf))
    return np.clip(tokens[:, None] - _STARTS, 0, most) / _LENGTHS


_STARTS = np.array(KNOTS, float)
_LENGTHS = np.diff((*_STARTS, 2 * KNOTS[-1]))
_LINES = _pieces(np.arange(TABLE + 1.0))


def _prior(known: Array) -> Array:
    """The quadratic form of all that is believed before the first step; 0 at `known`."""
    slopes = SLOPE / _LENGTHS
    firm = np.minimum(1.0, _LENGTHS / NARROW) ** 2
    prior = np.diag([SCALE, *[NO_MORE] * (LINE - 1), *(FLAT * firm * slopes**2)])
    for column in (CONTEXTS, SESSIONS):
        if known[column]:
            prior[column, column] = 0.0
            _tie(prior, SEED, column, 1.0, 1.0, TO_SCALE)
    for piece in range(len(KNOTS) - 1):
        strength = STRAIGHT * firm[piece]
        _tie(prior, LINE + piece, LINE + piece + 1, slopes[piece], slopes[piece + 1], strength)
    return prior


def _tie(prior: Array, left: int, right: int, of_left: float, of_right: float, strength: float) -> None:
    """Add strength * (of_left * left - of_right * right) ** 2."""
    prior[left, left] += strength * of_left**2
    prior[right, right] += strength * of_right**2
    prior[[left, right], [right, left]] -= strength * of_left * of_right
