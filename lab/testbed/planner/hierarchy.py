"""Which models, at which places, make the fastest hierarchy: a shortest path with gains.

A chain of models is a path from the target down to the model that drafts alone. An edge of it is a pair of models with
the length of the blocks between them; it multiplies the tokens wanted below by those that a block needs for each that
it commits (its gain), and adds the seconds of a verdict. HSD (arXiv 2510.19705) reduces its choice of a chain to such a
path. Here the edges have a network in them, and a level that is taken back starts cold (hierarchy_rounds.py).

What an edge costs depends on the lower level through one number, the mean seconds until that has a block. It grows with
that number, so the best way to supply one edge is best for all that is above it: edges are the nodes of the path, and
models are looked at once, the smaller before the larger. With M places of models and blocks of at most T tokens there
are M^3 T edges, each of which is compared with the M^2 T edges below it. An exhaustive search finds the same chains
(tests/test_hierarchy_plan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np

from hw_profiles.speculation import LONGEST, Numbers
from lab.testbed.planner.hierarchy_blocks import Agreement, Blocks, Dependence, blocks
from lab.testbed.planner.hierarchy_rounds import Ahead, Rounds


@dataclass(frozen=True)
class Candidate:
    """One model at one place, which may take part."""

    model: str
    place: str
    step_s: Callable[[float], float]  # seconds of its step over so many positions of one text, on average
    judges: bool = True  # whether it can take blocks; else it only drafts alone


class Hop(NamedTuple):
    """From one place to another one with the model above."""

    rtt_s: float
    ahead: Ahead = Ahead.DRAFTS
    bounds: tuple[float, ...] = (0.0,)  # to choose from: see `blocks`
    wait: float = 0.0  # steps of the upper model that a block waits for, beside its own


class Below(NamedTuple):
    """What supplies a model with blocks: an edge of a chain."""

    lower: Candidate
    length: int  # tokens of a block at most
    bound: float
    rounds: Rounds  # between both
    below: Below | None  # what supplies `lower`; None = it drafts alone


@dataclass(frozen=True)
class Chain:
    """The target with what is below it."""

    target: Candidate
    below: Below | None  # None = it decodes alone

    @property
    def edges(self) -> list[Below]:
        """From the target down."""
        found, edge = [], self.below
        while edge is not None:
            found.append(edge)
            edge = edge.below
        return found

    @property
    def candidates(self) -> list[Candidate]:
        """From the target down."""
        return [self.target, *(edge.lower for edge in self.edges)]

    @property
    def rate(self) -> float:
        """Tokens/s of one user, in the long run."""
        return 1 / (self.below.rounds.token_s if self.below else self.target.step_s(1))

    def answer_rate(self, tokens: int) -> float:
        """Tokens/s over the first `tokens` tokens after the very first one of an answer.

        The first block is made while the server reads the prompt, in a step like any other. Until the block is there
        the server streams its own tokens. Then rounds begin, and the last one is cut.
        """
        own_s, below = self.target.step_s(1), self.below
        if below is None:
            return 1 / own_s
        rounds = below.rounds
        if below.lower.place == self.target.place:
            return tokens / float(rounds.supplies(tokens)[-1])
        streamed = min(tokens, max(0, ceil((rounds.supply_s + rounds.rtt_s) / own_s) - 1))
        rest_s = float(rounds.supplies(tokens - streamed)[-1])
        return tokens / (streamed * own_s + rest_s - (0 if streamed else rounds.ready_s))

    @property
    def tokens(self) -> float:
        """That a step of the target commits."""
        return self.below.rounds.blocks.mean_tokens if self.below else 1.0

    @property
    def positions(self) -> float:
        """Positions that the target computes for each token of the text."""
        return self.below.rounds.blocks.mean_positions / self.tokens if self.below else 1.0

    @property
    def step_s(self) -> float:
        """Seconds of a step of the target."""
        if self.below is None:
            return self.target.step_s(1)
        return self.target.step_s(self.below.rounds.blocks.mean_positions)


# Edges below each model, and the seconds in which they make 0, 1, 2, ... tokens from a cold start
Stock = dict[Candidate, list[tuple[Below, Numbers]]]


class Spec(NamedTuple):
    """An edge without its times: whose blocks, how long, and whether a third model drafts for their sender."""

    upper: Candidate
    lower: Candidate
    lowest: Candidate | None
    length: int
    bound: float


@dataclass(frozen=True)
class Hierarchy:
    """What there is to choose from."""

    candidates: tuple[Candidate, ...]  # smaller models before larger ones; the last one is the target
    hops: Mapping[tuple[str, str], Hop]  # by lower and upper place; between others there is none
    agreements: Mapping[tuple[str, str], Agreement]  # by lower and upper model
    dependences: Mapping[tuple[str, str, str], Dependence] = field(default_factory=dict)  # lowest model first
    longest: int = LONGEST  # tokens of a block

    def best(self) -> Chain:
        """The fastest chain; the target alone where none is faster."""
        return max(self.chains(), key=lambda chain: chain.rate)

    def chains(self) -> list[Chain]:
        """The target alone, and the best chain behind each edge to it."""
        stock: Stock = {}
        *drafts, target = self.candidates
        for upper in drafts:
            stock[upper] = [(edge, edge.rounds.restarts(self.longest)) for edge in self._edges(upper, stock)]
        return [Chain(target, None), *(Chain(target, edge) for edge in self._edges(target, stock))]

    def _edges(self, upper: Candidate, stock: Stock) -> Iterator[Below]:
        """All edges down from a model, each with the best supply for it."""
        for spec in self.specs(upper):
            supply_s, below = self._supply(spec, stock)
            yield Below(spec.lower, spec.length, spec.bound, self.rounds(spec, supply_s), below)

    def specs(self, upper: Candidate) -> Iterator[Spec]:
        """All edges down from a model."""
        for lower in self._beneath(upper):
            hop = self.hops[lower.place, upper.place]
            for lowest in (None, *self._beneath(lower)):
                for length in range(1, self.longest + 1):
                    for bound in hop.bounds:
                        yield Spec(upper, lower, lowest, length, bound)

    def blocks(self, spec: Spec) -> Blocks:
        """What becomes of the blocks of an edge."""
        agreement = self.agreements[spec.lower.model, spec.upper.model]
        known = None
        if spec.lowest is not None:
            known = self.dependences.get((spec.lowest.model, spec.lower.model, spec.upper.model))
        return blocks(agreement, spec.length, spec.bound, known if spec.bound else None)

    def rounds(self, spec: Spec, supply_s: float) -> Rounds:
        """Of an edge whose blocks take `supply_s` seconds on average from a cold start."""
        sent, hop = self.blocks(spec), self.hops[spec.lower.place, spec.upper.place]
        steps = np.array([spec.upper.step_s(tokens + 1) for tokens in range(len(sent.lengths))])
        step_s = float(sent.lengths @ steps)
        return Rounds(sent, supply_s, hop.rtt_s, step_s, hop.ahead, spec.lower.step_s(1), hop.wait)

    def _beneath(self, upper: Candidate) -> list[Candidate]:
        """Those that can send it blocks."""
        return [
            lower
            for lower in self.candidates
            if upper.judges
            and (lower.place, upper.place) in self.hops
            and (lower.model, upper.model) in self.agreements
        ]

    def _supply(self, spec: Spec, stock: Stock) -> tuple[float, Below | None]:
        """Mean seconds until an edge has a block from a cold start, and the edge below it that is fastest there."""
        lengths = self.blocks(spec).lengths
        if spec.lowest is None:
            return float(lengths @ alone_s(spec.lower, len(lengths))), None
        known = [each for each in stock[spec.lower] if each[0].lower is spec.lowest]
        supplies = [float(lengths @ seconds[: len(lengths)]) for _, seconds in known]
        best = int(np.argmin(supplies))
        return supplies[best], known[best][0]


def alone_s(candidate: Candidate, count: int) -> Numbers:
    """Seconds in which it writes 0, 1, ..., `count` - 1 tokens without a draft."""
    return np.arange(count, dtype=np.float64) * candidate.step_s(1)
