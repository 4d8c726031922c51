"""Draft trees for tests, and what they come to by plain enumeration of their paths."""

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from opensled.core.messages import DraftBlock, DraftToken


def tree(base: int, *nodes: tuple[int, int]) -> DraftBlock:
    """A tree of (id, parent) pairs."""
    tokens = tuple(DraftToken(id) for id, _ in nodes)
    return DraftBlock(base, tokens, tuple(parent for _, parent in nodes))


def paths(block: DraftBlock) -> list[tuple[int, ...]]:
    """The ids from the root to each token."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(block.tokens, block.parents):
        found.append((*(found[parent] if parent >= 0 else ()), token.id))
    return found


def longest_agreeing(block: DraftBlock, text: Sequence[int]) -> int:
    """Tokens of the longest path that `text` begins with."""
    return max([len(path) for path in paths(block) if path == tuple(text[: len(path)])], default=0)


def grown(
    chance: random.Random, base: int, text: Sequence[int], nodes: int, vocab_size: int, right: float = 0.5
) -> DraftBlock:
    """A random tree in which a child of a right path goes on with `text` by a chance of `right`; it may have twins."""
    found: list[tuple[int, int]] = []
    follows = {-1: 0}  # how far the path to a token agrees with the text
    for index in range(nodes):
        parent = chance.choice([-1, index - 1, chance.randrange(-1, index)]) if index else -1
        agrees = follows.get(parent)
        if agrees is not None and agrees < len(text) and chance.random() < right:
            follows[index] = agrees + 1
            found.append((text[agrees], parent))
        else:
            found.append((chance.randrange(1, vocab_size), parent))
    return tree(base, *found)


@st.composite
def shapes(draw: st.DrawFn, most: int = 12, ids: int = 3) -> DraftBlock:
    """Any small tree over few ids, so that twins are common."""
    count = draw(st.integers(1, most))
    return tree(7, *[(draw(st.integers(0, ids - 1)), draw(st.integers(-1, i - 1))) for i in range(count)])
