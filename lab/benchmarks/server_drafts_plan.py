"""What server_drafts asks, and in which order: prompts, or groups of as many as there are users, by laps.

Within a lap no prompt occurs twice, and each lap has new servers: tables that learn from all texts (`cacheback`) must
not meet a text again only because the benchmark has.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lab.benchmarks.real_summary import Unit
from lab.benchmarks.real_texts import Prompt, prompts
from lab.testbed.provenance import SEED
from opensled.core.errors import UsageError

GREEDY = "greedy"
LEAST = 3  # groups of a kind


class Run(NamedTuple):
    """What is compared by itself."""

    setup: str  # of real_contenders.SETUPS
    sampling: str  # of real_contenders.SAMPLINGS
    users: int

    def __str__(self) -> str:
        return f"{self.setup}, {self.sampling}, {self.users} user{'s' if self.users > 1 else ''}"


class Group(NamedTuple):
    """Prompts of one kind that are asked at the same time, one by each user."""

    kind: str
    number: int  # among the groups of its kind, from 0
    prompts: tuple[Prompt, ...]

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(str(prompt.number) for prompt in self.prompts)}"


def run_of(unit: Unit) -> Run:
    return Run(unit["setup"], unit["sampling"], unit["users"])


def place(unit: Unit) -> tuple[Run, str, int]:
    """Two units of the same place measure the same."""
    return run_of(unit), unit["kind"], unit["number"]


def groups_of(prompts: int, users: int) -> int:
    """How many groups of as many prompts as there are `users` ask `prompts` of them, and some more; LEAST at least, for
    an interval, but no more than there are prompts."""
    return max(-(-prompts // users), min(prompts, LEAST))


def laps(kinds: Sequence[str], users: int, count: int) -> Iterator[list[Group]]:
    """So many groups of each kind; kinds in turns. One user is asked each prompt once at most.

    The first lap takes the prompts as they stand in their file, each later one in an order of its own.
    Raises UsageError where a kind has fewer prompts than there are users.
    """
    by_kind = {kind: list(_groups(kind, users, count)) for kind in kinds}
    for lap in range(max((len(each) for each in by_kind.values()), default=0)):
        rounds = [groups[lap] for groups in by_kind.values() if lap < len(groups)]
        longest = max(map(len, rounds))
        yield [groups[turn] for turn in range(longest) for groups in rounds if turn < len(groups)]


def _groups(kind: str, users: int, count: int) -> Iterator[list[Group]]:
    """The groups of one kind, by laps."""
    known = prompts(kind)
    each = len(known) // users
    if not each:
        raise UsageError(f"{kind} has {len(known)} prompts, too few for {users} users at once")
    wanted = min(count, each) if users == 1 else count
    for first in range(0, wanted, each):
        order = list(known)
        if first:
            random.Random(f"{SEED} {kind} {first}").shuffle(order)
        yield [
            Group(kind, first + turn, tuple(order[turn * users : (turn + 1) * users]))
            for turn in range(min(each, wanted - first))
        ]


def turned(names: Sequence[str], number: int) -> list[str]:
    """The same names from another one on, by the number of a group: none is always the first."""
    first = number % len(names)
    return [*names[first:], *names[:first]]
