"""How Cacheback's tables grow a draft: a chain of first children, or a tree, with calibrated confidences."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from opensled.drafting.tables import Follower

# The paper leaves these open; docs/drafters.md says so, and what a tree of this size takes.
MAX_NODES = 60  # of a tree
DEEPEST = 9  # tokens from the truth to a leaf: three followers of 3 tokens
WIDEST = 8  # followers that grow at one node
OLD_WEIGHT = 4.0  # observations of this sequence that the share in all sequences counts for
FROZEN, BOTH = 1, 2  # kinds of a follower; 0 = it stands in the dynamic table only

Row = tuple[tuple[Follower, int], ...]  # what may follow at one place, best first: followers with their kinds
Place = tuple[int, int, int]  # of a draft token: kind and rank of its follower, index in the follower
LookUp = Callable[[tuple[int, ...]], Row]  # the row of a text


class Calibration:
    """The confidence of a draft token: the share of the tokens at such a place that were right.

    It starts from the share in all sequences, which counts for OLD_WEIGHT observations. That share starts
    from 1 / (2 + rank) (Laplace's rule for rank 0).
    """

    def __init__(self) -> None:
        self._all: dict[Place, list[int]] = {}  # place -> [right, seen]
        self.begin()

    def another(self) -> Calibration:
        """For one more sequence at the same time: what it shows counts for all of them."""
        found = Calibration()
        found._all = self._all
        return found

    def begin(self) -> None:
        """Start a new sequence."""
        self._here: dict[Place, list[int]] = {}

    def confidence(self, kind: int, rank: int, index: int) -> float:
        """The probability that such a token is right, given that the tokens before it are right."""
        all_right, all_seen = self._all.get((kind, rank, index), (0, 0))
        right, seen = self._here.get((kind, rank, index), (0, 0))
        before = (all_right + 1) / (all_seen + 2 + rank)
        return (right + OLD_WEIGHT * before) / (seen + OLD_WEIGHT)

    def learn(self, row: Row, tokens: Sequence[int]) -> None:
        """`tokens` came where `row` was. A token of a follower counts if the tokens before it were right."""
        for rank, (follower, kind) in enumerate(row):
            for index, (guess, token) in enumerate(zip(follower, tokens)):
                for counts in (self._all, self._here):
                    found = counts.setdefault((kind, rank, index), [0, 0])
                    found[0] += guess == token
                    found[1] += 1
                if guess != token:
                    break


def grow_chain(look_up: LookUp, ends: frozenset[int], text: tuple[int, ...]) -> Iterator[tuple[int, Place]]:
    """The likeliest continuation of `text`, first children only: ids with their places. Nothing follows `ends`."""
    depth = 0
    while depth < DEEPEST:
        row = look_up(text)
        if not row:
            return
        follower, kind = row[0]
        for index, token in enumerate(follower[: DEEPEST - depth]):
            yield token, (kind, 0, index)
            if token in ends:
                return
        text, depth = text + follower, depth + len(follower)


def grow_tree(
    look_up: LookUp, ends: frozenset[int], text: tuple[int, ...]
) -> Iterator[tuple[int, int, Place]]:
    """Nodes (id, parent, place) of a tree that continues `text`, at most MAX_NODES. Nothing follows `ends`.

    The follower that grows next has the least sum of ranks on its path, then the least depth, then was found first.
    """
    children: dict[tuple[int, int], int] = {}  # (node, id) -> the node's child with this id
    numbers = count()
    # Heap of: sum of ranks, depth, number, node to grow from, the text up to there, its row, rank in the row
    waiting = [(0, 0, next(numbers), -1, text, look_up(text), 0)]
    while waiting and len(children) < MAX_NODES:
        ranks, depth, _, node, text, row, rank = heapq.heappop(waiting)
        if not row:
            continue
        if rank + 1 < len(row):
            heapq.heappush(waiting, (ranks + 1, depth, next(numbers), node, text, row, rank + 1))
        follower, kind = row[rank]
        for index, token in enumerate(follower):
            child = children.get((node, token))
            if child is None:
                if len(children) == MAX_NODES or depth + index == DEEPEST:
                    break
                child = children[node, token] = len(children)
                yield token, node, (kind, rank, index)
            if token in ends:
                break
            node = child
        else:
            text, depth = text + follower, depth + len(follower)
            if depth < DEEPEST:
                heapq.heappush(waiting, (ranks, depth, next(numbers), node, text, look_up(text), 0))
