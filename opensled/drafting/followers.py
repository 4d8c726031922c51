"""Cacheback's two tables at work on one text (arXiv 2511.21699): what may follow it, as a chain or as a tree.

The last token (the leader) is looked up in two tables: a dynamic one, which learns from the text at hand, then a frozen
one, filled from a corpus. What followed it (the followers, a few tokens each) grows a tree, and the last token of each
follower is the next leader, until the tree is large or deep enough. docs/drafters.md says what this implementation
chooses where the paper leaves it open (node budget, order of the two tables at a node, order of growth).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opensled.drafting.growth import BOTH, FROZEN, WIDEST, Calibration, Row, grow_chain, grow_tree
from opensled.drafting.tables import FrozenTable, LruTable


class Followers:
    """What follows a text that grows; `dynamic` learns from it."""

    def __init__(
        self, dynamic: LruTable, frozen: FrozenTable | None, ends: frozenset[int], calibration: Calibration
    ) -> None:
        """`ends`: ids after which nothing follows. `calibration`: begun for this text."""
        self._dynamic, self._frozen, self._ends, self._calibration = dynamic, frozen, ends, calibration
        self._tail: tuple[int, ...] = ()  # the newest tokens, as many as the tables need

    def read(self, text: Sequence[int]) -> None:
        """The text begins with this, of which nothing was guessed."""
        self._tail = self._dynamic.update((), text)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by `tokens`: learn them, and how good the guesses of the tables were."""
        text = (*self._tail, *tokens)
        for place in range(len(self._tail), len(text)):
            self._calibration.learn(self._row(text[:place]), text[place:])
        self._tail = self._dynamic.update(self._tail, tokens)

    def chain(self, tail: Sequence[int] | None = None) -> Iterator[tuple[int, float]]:
        """What may follow the text, or any other one that ends with `tail`: ids with their confidence."""
        for token, place in grow_chain(self._row, self._ends, self._tail if tail is None else tuple(tail)):
            yield token, self._calibration.confidence(*place)

    def tree(self) -> Iterator[tuple[int, float, int]]:
        """Nodes of a tree that may follow the text: ids with their confidence and the number of the parent."""
        for token, parent, place in grow_tree(self._row, self._ends, self._tail):
            yield token, self._calibration.confidence(*place), parent

    def _row(self, text: tuple[int, ...]) -> Row:
        """What may follow `text`: the dynamic table's followers, then the frozen one's, no follower twice."""
        newer = self._dynamic.followers(text)
        older = self._frozen.followers(text) if self._frozen else ()
        best = list(dict.fromkeys(newer + older))[:WIDEST]
        return tuple(
            [(f, FROZEN if rank >= len(newer) else BOTH * (f in older)) for rank, f in enumerate(best)]
        )
