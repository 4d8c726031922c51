"""Prompts of random ids with seeded lengths: load without a meaning, for the sizes that matter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import log

from opensled_testbed.load.workload import Item


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens, log-normal around their medians, and prefixes that many prompts share."""

    prompt: int = 64  # median of a prompt's own part
    output: int = 48  # median of an answer
    sigma: float = 0.6  # of the logarithm of both: 0 = all alike
    prefixes: int = 0  # how many different shared prefixes; 0 = none
    prefix: int = 64  # tokens of each
    longest: int = 1024  # prompt and answer together never exceed it
    vocabulary: int = 2048  # ids are below it


def synthetic_items(count: int, seed: int, shape: Shape = Shape()) -> list[Item]:
    """`count` items whose answers go on, past any end token, to the length drawn for them."""
    rng = random.Random(f"synthetic {seed}")
    prefixes = [_ids(rng, shape.prefix, shape) for _ in range(shape.prefixes)]
    return [_item(rng, number, seed, prefixes, shape) for number in range(count)]


def _item(rng: random.Random, number: int, seed: int, prefixes: list[tuple[int, ...]], shape: Shape) -> Item:
    prefix = prefixes[number % len(prefixes)] if prefixes else ()
    room = shape.longest - len(prefix)
    output = min(_length(rng, shape.output, shape.sigma), room - 1)
    own = min(_length(rng, shape.prompt, shape.sigma), room - output)
    return Item(
        id=f"synthetic-{seed}-{number}",
        prompt=(*prefix, *_ids(rng, own, shape)),
        max_tokens=output,
        seed=number,
        task="synthetic",
        ignore_eos=True,
    )


def _length(rng: random.Random, median: int, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(log(median), sigma)))


def _ids(rng: random.Random, count: int, shape: Shape) -> tuple[int, ...]:
    return tuple(rng.randrange(shape.vocabulary) for _ in range(count))
