"""What tests of the emulators share: a clock moved by hand, and profiles with round numbers."""

import random

from hw_profiles.profiles import AcceleratorProfile, DraftSpeed, Quantity, TargetShape
from hw_profiles.step_cost import TargetCost
from lab.testbed.traces import ItemTrace, Proposal
from opensled.core.protocol import common_prefix


class Clock:
    """Stands until it is set."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class HandClock:
    """Stands in for the module `time`: sleeping moves it, and so does work that a test pretends to do."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept += seconds
        self.now += seconds


def exactly(number: float) -> Quantity:
    return Quantity(number, number, number, "a test")


def cost(weight_gb: float, kv_bytes: int, overhead_ms: float = 0.0) -> TargetCost:
    """A model of so many bytes on an accelerator that reads 1 GB/s and computes at no cost."""
    accelerator = AcceleratorProfile(
        "a",
        "A",
        80.0,
        exactly(1),
        exactly(1),
        exactly(1e9),
        exactly(overhead_ms),
        exactly(1),
        exactly(1),
        False,
    )
    params = weight_gb * 1e9 / 2
    shape = TargetShape("t", "T", "a test", params, params, layers=1, kv_heads=1, head_dim=kv_bytes // 4)
    assert shape.kv_bytes == kv_bytes
    return TargetCost(accelerator, shape)


def speed(decode: float = 10, prefill: float = 100) -> DraftSpeed:
    """A draft model of so many tokens/s."""
    return DraftSpeed("0.5b", exactly(decode), exactly(prefill))


WRONG, TOKENS = 7, 48


def steady(seed: int, acceptance: float, tokens: int = TOKENS) -> ItemTrace:
    """A drafter whose token at a position is right or wrong wherever it began to draft, as real ones are."""
    rng = random.Random(seed)
    text = tuple(rng.randrange(20, 2000) for _ in range(tokens))
    drafted = [token if rng.random() < acceptance else WRONG for token in text]
    sure = [round(rng.uniform(0.3, 1.0), 3) for _ in range(tokens + 8)]
    proposals = []
    for place in range(tokens):
        right = common_prefix(drafted[place:], text[place:])
        ids = [*text[place : place + right], *[WRONG] * 8][:8]
        # What follows a wrong token is recorded no further than eight from where it was drafted: all alike here.
        known = sure[place : place + right + 1]
        proposals.append(Proposal(tuple(ids), tuple([*known, *known[-1:] * 8][:8])))
    return ItemTrace(f"steady-{seed}", tuple(range(1, 31)), text, "length", tuple(proposals))
