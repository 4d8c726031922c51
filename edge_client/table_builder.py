"""A frozen draft table from texts: of each leader its most frequent followers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from edge_client.drafters.tables import Rows, TableShape, as_rows

# Different windows kept at a time, about 2 GB; beyond it the rarest are forgotten
MOST_WINDOWS = 8_000_000


class TableBuilder:
    """Counts windows of tokens, document by document; no window spans two documents.

    The same documents in the same order give the same table.
    """

    def __init__(self, shape: TableShape, most_windows: int = MOST_WINDOWS) -> None:
        self.shape, self._most = shape, most_windows
        self.tokens = 0
        self._windows: Counter[tuple[int, ...]] = Counter()

    def read(self, ids: Sequence[int]) -> None:
        """Learn from the token ids of one document."""
        self.tokens += len(ids)
        span = self.shape.span
        self._windows.update(zip(*(ids[place:] for place in range(span))))
        if len(self._windows) > self._most:
            self._forget()

    def _forget(self) -> None:
        """Drop the rarer half, as in lossy counting (Manku and Motwani, VLDB 2002)."""
        kept = sorted(self._windows.items(), key=lambda item: (-item[1], item[0]))[: self._most // 2]
        self._windows = Counter(dict(kept))

    def rows(self) -> Rows:
        """The table: the most frequent leaders, each with its most frequent followers; ties go to lower ids."""
        followers: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for window, seen in self._windows.items():
            leader, follower = window[: self.shape.leader], window[self.shape.leader :]
            followers.setdefault(leader, []).append((-seen, follower))
        often = sorted((sum(seen for seen, _ in found), leader) for leader, found in followers.items())
        chosen = [leader for _, leader in often[: self.shape.leaders]]
        items = [(leader, self._best(followers[leader])) for leader in reversed(chosen)]
        return as_rows(items, self.shape)

    def _best(self, found: Iterable[tuple[int, tuple[int, ...]]]) -> tuple[tuple[int, ...], ...]:
        return tuple([follower for _, follower in sorted(found)[: self.shape.followers]])
