"""Where items come from: the tiny family's held-out tasks, a file of chats, or seeded random ids."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from lab.testbed.load.chats import read_chats
from lab.testbed.load.load import Item
from lab.testbed.prompts import heldout, messages_of
from opensled.core.errors import NotFound
from opensled.core.messages import ChatMessage

HELDOUT, SYNTHETIC = "heldout", "synthetic"
TEMPERATURE = 0.8  # of the sampled half of the held-out items


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


def items_of(
    workload: str, *, count: int, max_tokens: int, seed: int = 0, turns: int = 1, shape: Shape = Shape()
) -> list[Item]:
    """`count` items of "heldout", of "synthetic" (lengths by `shape`), or of a file; the same ones each time.

    A file's own length limits `count`, and at most `turns` user turns of each of its chats are asked. Raises
    NotFound for a file that is not there, and UsageError naming the line of one that cannot be used.
    """
    if workload == HELDOUT:
        return heldout_items(count, seed, max_tokens)
    if workload == SYNTHETIC:
        return synthetic_items(count, seed, shape)
    path = Path(workload).expanduser()
    if not path.is_file():
        raise NotFound(
            f"no workload {workload!r}: give {HELDOUT}, {SYNTHETIC} or a file of JSON lines", "workload"
        )
    return read_chats(path, count=count, max_tokens=max_tokens, turns=turns)


def heldout_items(count: int, seed: int, max_tokens: int) -> list[Item]:
    """`count` items of the held-out tasks, the tasks in turns; half of each task greedy, half at TEMPERATURE.

    The same arguments give the same items, and an id says all that decides an item's text but `max_tokens`. Items
    beyond those in the file come again with other seeds.
    """
    pools = _pools(seed)
    return [_heldout(pools, number, seed, max_tokens) for number in range(count)]


class _Line(NamedTuple):
    number: int
    content: dict[str, Any]


def _pools(seed: int) -> list[list[_Line]]:
    """The lines of each task, in an order of the seed."""
    tasks: dict[str, list[_Line]] = {}
    for number, content in enumerate(heldout()):
        tasks.setdefault(content["task"], []).append(_Line(number, content))
    for task, pool in tasks.items():
        random.Random(f"{seed} {task}").shuffle(pool)
    return list(tasks.values())


def _heldout(pools: Sequence[Sequence[_Line]], number: int, seed: int, max_tokens: int) -> Item:
    turn, task = divmod(number, len(pools))
    again, index = divmod(turn, len(pools[task]))
    line = pools[task][index]
    sampled = (turn + task) % 2 == 1 or again > 0
    noise = 1_000 * again + seed
    return Item(
        id=f"heldout-{line.number}" + (f"-seed-{noise}" if sampled else ""),
        prompt=_prompt(line.content),
        max_tokens=max_tokens,
        temperature=TEMPERATURE if sampled else 0.0,
        seed=noise,
        task=line.content["task"],
        answer=line.content["answer"] or "",
    )


def _prompt(line: dict[str, Any]) -> str | tuple[ChatMessage, ...]:
    """The raw text, or the messages, of one line of the held-out file."""
    if "prompt" in line:
        return str(line["prompt"])
    return messages_of(line["messages"])


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
