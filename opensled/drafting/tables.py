"""Tables of what follows what: leader (the last few tokens) -> followers (the few tokens after it), best first.

Cacheback (arXiv 2511.21699) drafts from two of them: a dynamic one, which learns from the text at hand and drops what
was least recently used, and a frozen one, which was filled from a corpus.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Follower = tuple[int, ...]


@dataclass(frozen=True)
class TableShape:
    """Sizes of a table. The paper's best setting is a leader of 1 and followers of about 3 tokens."""

    leader: int = 1  # tokens of a leader
    follower: int = 3  # tokens of a follower
    followers: int = 8  # that a leader has at most
    leaders: int = 32_768  # at most

    @property
    def span(self) -> int:
        """Tokens of the window that is learned from."""
        return self.leader + self.follower


class Rows(NamedTuple):
    """A table as arrays, for files: leader by leader, the least recently (or least often) seen one first."""

    leaders: np.ndarray  # [leaders, tokens of a leader]
    counts: np.ndarray  # [leaders]: how many followers each has
    followers: np.ndarray  # [sum of counts, tokens of a follower], of each leader the best one first


class LruTable:
    """Learns from text as it comes; leaders and each leader's followers are in order of their last use."""

    def __init__(self, shape: TableShape = TableShape()) -> None:
        self.shape, self._leader, self._span = shape, shape.leader, shape.span
        self.learned = 0  # windows so far
        # A row is replaced and never changed: a drafter in another thread may read it.
        self._rows: OrderedDict[tuple[int, ...], tuple[Follower, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def followers(self, tokens: Sequence[int]) -> tuple[Follower, ...]:
        """Followers of the leader that `tokens` end with, best first. A look-up changes nothing, also no order."""
        return self._rows.get(tuple(tokens[-self._leader :]), ())

    def update(self, before: Sequence[int], tokens: Sequence[int]) -> tuple[int, ...]:
        """Learn every window that ends within `tokens`; `before` is what an earlier update returned, () at the start.

        Returns the tokens that the next windows begin with, so that no window is lost between two updates.
        """
        span, leader = self._span, self._leader
        text = (*before, *tokens)
        with self._lock:
            for end in range(span, len(text) + 1):
                window = text[end - span : end]
                self._insert(window[:leader], window[leader:])
        return text[-(span - 1) :]

    def _insert(self, leader: tuple[int, ...], follower: Follower) -> None:
        """`follower` was seen after `leader`: both become the most recent ones, and the oldest ones make room."""
        self.learned += 1
        row = self._rows.get(leader, ())
        if row[:1] != (follower,):
            others = [other for other in row if other != follower]
            self._rows[leader] = (follower, *others[: self.shape.followers - 1])
        self._rows.move_to_end(leader)
        if len(self._rows) > self.shape.leaders:
            self._rows.popitem(last=False)

    def items(self) -> list[tuple[tuple[int, ...], tuple[Follower, ...]]]:
        """Leaders with their followers as they are now, the least recent leader first."""
        with self._lock:
            return list(self._rows.items())

    def restore(self, rows: Rows) -> None:
        """Take over the rows of a file; of too many leaders, the most recent ones."""
        for leader, followers in list(each(rows))[-self.shape.leaders :]:
            self._rows[leader] = followers[: self.shape.followers]


class FrozenTable:
    """A table that never changes, in a few bytes a token; leaders are found by binary search."""

    def __init__(self, rows: Rows, vocab_size: int) -> None:
        self._leader = rows.leaders.shape[1]
        self._vocab_size = vocab_size
        keys = np.zeros(len(rows.leaders), np.int64)
        for column in rows.leaders.T:
            keys = keys * vocab_size + column
        order = np.argsort(keys, kind="stable")
        ends = np.cumsum(rows.counts, dtype=np.int64)
        self._keys, self._ends = keys[order], ends[order]
        self._starts = self._ends - rows.counts[order]
        self._followers = rows.followers

    def __len__(self) -> int:
        return len(self._keys)

    def followers(self, tokens: Sequence[int]) -> tuple[Follower, ...]:
        """Followers of the leader that `tokens` end with, best first."""
        if len(tokens) < self._leader:
            return ()
        key = 0
        for token in tokens[-self._leader :]:
            key = key * self._vocab_size + token
        place = int(self._keys.searchsorted(key))
        if place == len(self._keys) or self._keys[place] != key:
            return ()
        found = self._followers[self._starts[place] : self._ends[place]]
        return tuple(map(tuple, found.tolist()))


def each(rows: Rows) -> Iterator[tuple[tuple[int, ...], tuple[Follower, ...]]]:
    """Leaders with their followers, in the order of `rows`."""
    followers = iter(map(tuple, rows.followers.tolist()))
    for leader, count in zip(rows.leaders.tolist(), rows.counts.tolist()):
        yield tuple(leader), tuple([next(followers) for _ in range(count)])


def as_rows(items: Sequence[tuple[tuple[int, ...], tuple[Follower, ...]]], shape: TableShape) -> Rows:
    """Arrays of a table's leaders with their followers."""
    leaders, followers = zip(*items) if items else ((), ())
    flat = [follower for row in followers for follower in row]
    return Rows(
        np.array(leaders, np.uint32).reshape(-1, shape.leader),
        np.array([len(row) for row in followers], np.uint8),
        np.array(flat, np.uint32).reshape(-1, shape.follower),
    )
