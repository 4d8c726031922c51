"""Steps over sessions that always have a draft, and three ways to choose which of its tokens a step verifies.

The drafts are recorded, so all ways choose among the same ones. What a step costs is a profile's law, or what a real
engine takes for it; which tokens stand the recorded text says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hw_profiles.learned import CostModel
from hw_profiles.step_cost import StepCost
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.traces import WHOLE, ItemTrace, TraceSet
from scheduler.estimates import DraftEstimate, Forecast
from scheduler.goodput.step_budget import DraftOffers, most_valuable
from verify_server.engine.base import Segment, TargetEngine

ROOM = 512  # tokens of a step


class Reader:
    """One session after the other: a text as far as it is written, and the draft of what may follow."""

    def __init__(self, items: Iterator[ItemTrace]) -> None:
        self._items, self.estimate = items, DraftEstimate()
        self.tokens = 0  # written, of all texts
        self._begin()

    def _begin(self) -> None:
        self.item, self.place = next(self._items), 0

    @property
    def context(self) -> int:
        """Positions before the newest token."""
        return len(self.item.prompt_ids) + self.place - 1

    @property
    def drafted(self) -> tuple[tuple[int, float], ...]:
        """Ids and confidences; the last token of a text needs no draft."""
        proposal = self.item.proposals[self.place]
        room = len(self.item.target_ids) - self.place - 1
        return tuple(zip(proposal.ids, proposal.confidences))[:room]

    def offer(self, with_confidences: bool) -> tuple[int, Forecast, tuple[float, ...], int]:
        """A row of `DraftOffers`."""
        drafted = self.drafted
        reach = self.estimate.reach([told for _, told in drafted]) if with_confidences else ()
        return len(drafted), self.estimate.forecast, reach, 0

    def commit(self, verified: int) -> bool:
        """The first tokens of the draft were verified; whether the text ends with that."""
        drafted = self.drafted
        seen = drafted[: verified + 1]  # of the token after those the target's own one is known, too
        stood = self.item.right(self.place, len(seen))
        tried = [(told, number < stood) for number, (_, told) in enumerate(seen[: stood + 1])]
        self.estimate.add_verdict(len(seen), stood, tried)
        written = min(verified, stood) + 1
        self.place, self.tokens = self.place + written, self.tokens + written
        ended = self.place >= len(self.item.target_ids)
        if ended:
            self._begin()
        return ended


class Target(Protocol):
    """Where steps are computed."""

    def cost(self) -> StepCost:
        """What the choice reckons with."""

    def step_s(self, readers: Sequence[Reader], verified: Sequence[int]) -> float:
        """Seconds of a step over all readers."""

    def begin(self, number: int, reader: Reader) -> None:
        """That reader has a new text, whose prompt is computed; its time does not count."""


@dataclass
class LawTarget:
    """By a profile."""

    law: StepLaw

    def cost(self) -> StepCost:
        return self.law.cost

    def step_s(self, readers: Sequence[Reader], verified: Sequence[int]) -> float:
        tokens = sum(verified) + len(readers)
        return self.law.cost.verify_s(tokens, sum(each.context for each in readers), len(readers))

    def begin(self, number: int, reader: Reader) -> None:
        """Prompts are not simulated."""


@dataclass
class EngineTarget:
    """By a real engine, whose costs are learned as a server learns them. Each reader has its own KV blocks."""

    engine: TargetEngine
    first_block: int
    blocks_each: int
    costs: CostModel = field(default_factory=CostModel)

    def cost(self) -> StepCost:
        return self.costs.cost

    def step_s(self, readers: Sequence[Reader], verified: Sequence[int]) -> float:
        segments = [self._segment(number, *each) for number, each in enumerate(zip(readers, verified))]
        begun = time.perf_counter()
        self.engine.forward(segments)
        seconds = time.perf_counter() - begun
        tokens = sum(len(segment.tokens) for segment in segments)
        self.costs.observe(tokens, sum(each.context for each in readers) + tokens, len(readers), seconds)
        return seconds

    def begin(self, number: int, reader: Reader) -> None:
        prompt = reader.item.prompt_ids[:-1]
        for start in range(0, len(prompt), ROOM):
            self.engine.forward([Segment(prompt[start : start + ROOM], start, self._blocks(number), 0)])

    def _segment(self, number: int, reader: Reader, verified: int) -> Segment:
        text = (*reader.item.prompt_ids, *reader.item.target_ids)
        tokens = (text[reader.context], *[id for id, _ in reader.drafted[:verified]])
        return Segment(tokens, reader.context, self._blocks(number), len(tokens))

    def _blocks(self, number: int) -> tuple[int, ...]:
        first = self.first_block + number * self.blocks_each
        return tuple(range(first, first + self.blocks_each))


Choice = Callable[[Sequence[Reader], StepCost, float], list[int]]


def one_length(length: int) -> Choice:
    """So many tokens of each draft."""
    return lambda readers, cost, rate: [min(length, len(each.drafted)) for each in readers]


def worth_most(with_confidences: bool) -> Choice:
    """Those that are worth most; without confidences a length for each session, by its running acceptance."""

    def choose(readers: Sequence[Reader], cost: StepCost, rate: float) -> list[int]:
        count, contexts = len(readers), sum(each.context for each in readers)

        def price(drafted: np.ndarray) -> np.ndarray:
            seconds = [cost.verify_s(count + int(each), contexts, count) for each in drafted]
            return rate * np.array(seconds)

        offers = DraftOffers(*zip(*[each.offer(with_confidences) for each in readers]))
        return most_valuable(offers, ROOM - count, price)

    return choose


class Run:
    """One way to choose, over its own sessions."""

    def __init__(self, choice: Choice, target: Target, traces: TraceSet, sessions: int, seed: int) -> None:
        self._choice, self._target = choice, target
        self.readers = [Reader(_items(traces, f"{seed} {number}")) for number in range(sessions)]
        for number, reader in enumerate(self.readers):
            target.begin(number, reader)
        self.seconds, self.rows, self.steps = 0.0, 0, 0

    @property
    def rate(self) -> float:
        """Tokens committed per second of the target's time."""
        return sum(each.tokens for each in self.readers) / self.seconds if self.seconds else 0.0

    def step(self) -> None:
        readers, cost = self.readers, self._target.cost()
        alone_s = cost.verify_s(len(readers), sum(each.context for each in readers), len(readers))
        verified = self._choice(readers, cost, self.rate or len(readers) / alone_s)
        self.seconds += self._target.step_s(readers, verified)
        self.rows, self.steps = self.rows + sum(verified), self.steps + 1
        for number, (reader, count) in enumerate(zip(readers, verified)):
            if reader.commit(count):
                self._target.begin(number, reader)


def _items(traces: TraceSet, seed: str) -> Iterator[ItemTrace]:
    """Texts that have a draft at their first place, without end, in an order of their own."""
    known = [item for item in traces.items if len(item.target_ids) > WHOLE]
    order = random.Random(seed)
    while True:
        yield from order.sample(known, len(known))
