"""How Cacheback's tables grow a draft: a chain of first children, or a tree, with calibrated confidences."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from edge_client.drafters.tables import DraftTable, Follower, LruTable

MOST_NODES = 60  # of a tree
DEEPEST = 9  # tokens from the truth to a leaf
WIDEST = 8  # followers that grow at one node
OLD_WEIGHT = 4.0
FROZEN, BOTH = 1, 2  # kinds of a follower, beside 0: it stands in the dynamic table only


class Row(NamedTuple):
    """What may follow at one place, best first."""

    followers: tuple[Follower, ...]
    kinds: tuple[int, ...]


class Counts:
    """How often followers were right, token by token: by kind, rank and place in the follower."""

    def __init__(self) -> None:
        self.right: dict[tuple[int, int, int], int] = {}
        self.seen: dict[tuple[int, int, int], int] = {}

    def learn(self, row: Row, tokens: Sequence[int]) -> None:
        """`tokens` are what came where `row` was; a place counts where those before it were right."""
        for rank, (follower, kind) in enumerate(zip(row.followers, row.kinds)):
            for place, (guess, token) in enumerate(zip(follower, tokens)):
                key = (kind, rank, place)
                self.seen[key] = self.seen.get(key, 0) + 1
                if guess != token:
                    break
                self.right[key] = self.right.get(key, 0) + 1


class Calibration:
    """What a draft token's confidence is read from: the share of such followers that were right.

    The share in this sequence, begun with that of all of them as if it had been seen OLD_WEIGHT times; that one began
    with 1 / (2 + rank) (Laplace's rule for rank 0).
    """

    def __init__(self) -> None:
        self._all, self._here = Counts(), Counts()

    def begin(self) -> None:
        """A new sequence."""
        self._here = Counts()

    def confidence(self, kind: int, rank: int, place: int) -> float:
        """That such a token is right, given that those before it are."""
        key = (kind, rank, place)
        before = (self._all.right.get(key, 0) + 1) / (self._all.seen.get(key, 0) + 2 + rank)
        return (self._here.right.get(key, 0) + OLD_WEIGHT * before) / (
            self._here.seen.get(key, 0) + OLD_WEIGHT
        )

    def learn(self, row: Row, tokens: Sequence[int]) -> None:
        """`tokens` are what came where `row` was."""
        self._all.learn(row, tokens)
        self._here.learn(row, tokens)


class Cacheback:
    """The two tables of one sequence, and what they say comes next."""

    def __init__(
        self, dynamic: LruTable, frozen: DraftTable | None, ends: frozenset[int] = frozenset()
    ) -> None:
        self.dynamic, self.frozen = dynamic, frozen
        self._ends = ends  # ids after which nothing follows
        self.calibration = Calibration()

    def row(self, tokens: Sequence[int]) -> Row:
        """What may follow `tokens`: the dynamic table's followers, then the frozen one's, no follower twice."""
        newer = self.dynamic.followers(tokens)
        older = self.frozen.followers(tokens) if self.frozen else ()
        followers = tuple(dict.fromkeys(newer + older))[:WIDEST]
        kinds = [FROZEN if place >= len(newer) else BOTH * (f in older) for place, f in enumerate(followers)]
        return Row(followers, tuple(kinds))

    def learn(self, tail: Sequence[int], tokens: Sequence[int]) -> None:
        """Compare what the tables say, as they are, with the `tokens` that followed `tail`."""
        text = (*tail, *tokens)
        for place in range(len(tail), len(text)):
            self.calibration.learn(self.row(text[:place]), text[place:])

    def chain(self, tail: Sequence[int]) -> Iterator[tuple[int, float]]:
        """The likeliest way on from `tail`, of first children only: ids with their confidence."""
        tail, depth = tuple(tail), 0
        while depth < DEEPEST:
            row = self.row(tail)
            if not row.followers:
                return
            for place, token in enumerate(row.followers[0][: DEEPEST - depth]):
                yield token, self.calibration.confidence(row.kinds[0], 0, place)
                if token in self._ends:
                    return
            tail, depth = tail + row.followers[0], depth + len(row.followers[0])

    def tree(self, tail: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """Nodes (id, parent, confidence given the parent), at most MOST_NODES.

        A follower grows when it is the least unlikely one left: by the sum of the ranks on its way, then by its depth.
        """
        growth = _Growth(self, tuple(tail))
        while growth.waiting and growth.nodes < MOST_NODES:
            yield from growth.next_follower()

    def confidence(self, kind: int, rank: int, place: int) -> float:
        return self.calibration.confidence(kind, rank, place)

    def ends_at(self, token: int) -> bool:
        return token in self._ends


class _Growth:
    """A tree while it grows, follower by follower, as a trie."""

    def __init__(self, cache: Cacheback, tail: tuple[int, ...]) -> None:
        self._cache = cache
        self._children: dict[tuple[int, int], int] = {}  # (node, id) -> the node's child with this id
        self.nodes = 0
        self._numbers = count()  # of those equally likely, the first found grows first
        # (sum of ranks, depth, number, node it grows from, the text up to there, what may follow, rank in it)
        self.waiting: list[tuple[int, int, int, int, tuple[int, ...], Row, int]] = []
        self._wait(0, 0, -1, tail)

    def _wait(self, ranks: int, depth: int, node: int, tail: tuple[int, ...]) -> None:
        row = self._cache.row(tail)
        if row.followers:
            heapq.heappush(self.waiting, (ranks, depth, next(self._numbers), node, tail, row, 0))

    def next_follower(self) -> Iterator[tuple[int, int, float]]:
        """Grow the least unlikely follower: its nodes that are new."""
        ranks, depth, _, node, tail, row, rank = heapq.heappop(self.waiting)
        if rank + 1 < len(row.followers):
            sibling = (ranks + 1, depth, next(self._numbers), node, tail, row, rank + 1)
            heapq.heappush(self.waiting, sibling)
        follower = row.followers[rank]
        for place, token in enumerate(follower):
            child = self._children.get((node, token))
            if child is None:
                if self.nodes == MOST_NODES or depth + place == DEEPEST:
                    return
                child = self._children[node, token] = self.nodes
                self.nodes += 1
                yield token, node, self._cache.confidence(row.kinds[rank], rank, place)
            if self._cache.ends_at(token):
                return
            node = child
        deeper = depth + len(follower)
        if deeper < DEEPEST:
            self._wait(ranks, deeper, node, tail + follower)
