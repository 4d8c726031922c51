"""What one llama.cpp batch computes, as the flat arrays that it takes.

A draft tree is told by sequences: each of its branches is one, and a token belongs to all branches that lead through
it. llama.cpp lets a token see the cells of a sequence it belongs to, so it sees the text and its own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opensled.core.trees import depths, path_to, runs


@dataclass(frozen=True)
class LlamaPiece:
    """Consecutive tokens of one sequence in a forward pass; logits are wanted after each of the last `rows`.

    The last tokens may be a tree, depth first. Its first run goes on in `sequence`, others have one of `branches` each.
    """

    sequence: int
    start: int
    tokens: Sequence[int]
    rows: int
    parents: tuple[int, ...] = ()  # of the tree's tokens, as in `Segment`
    branches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Flat:
    """Arrays [all tokens], but for `ids`, in which `counts[i]` sequences of token i follow those of token i - 1."""

    tokens: np.ndarray
    positions: np.ndarray
    counts: np.ndarray
    ids: np.ndarray
    wanted: np.ndarray  # bool: whether logits are

    def part(self, start: int, stop: int) -> Flat:
        """Tokens [start, stop)."""
        first, last = self.counts[:start].sum(), self.counts[:stop].sum()
        tokens, positions, counts, wanted = (
            values[start:stop] for values in (self.tokens, self.positions, self.counts, self.wanted)
        )
        return Flat(tokens, positions, counts, self.ids[first:last], wanted)


def flat(pieces: Sequence[LlamaPiece]) -> Flat:
    """All pieces, one after the other."""
    tokens = np.concatenate([np.asarray(piece.tokens, np.int32) for piece in pieces])
    wanted = np.concatenate(
        [np.arange(len(piece.tokens)) >= len(piece.tokens) - piece.rows for piece in pieces]
    )
    positions = np.concatenate([_positions(piece) for piece in pieces])
    members = [_members(piece) for piece in pieces]
    counts, ids = (np.concatenate(arrays) for arrays in zip(*members))
    return Flat(tokens, positions, counts, ids, wanted)


def _positions(piece: LlamaPiece) -> np.ndarray:
    first = piece.start + len(piece.tokens) - len(piece.parents)
    known = np.arange(piece.start, first)
    return np.concatenate([known, first - 1 + np.array(depths(piece.parents))]) if piece.parents else known


def _members(piece: LlamaPiece) -> tuple[np.ndarray, np.ndarray]:
    """Of how many sequences each token is, and of which ones."""
    count = len(piece.tokens)
    if not piece.parents:
        return np.ones(count, np.int32), np.full(count, piece.sequence, np.int32)
    every = [piece.sequence, *piece.branches]
    of_tree: list[list[int]] = [[] for _ in piece.parents]
    for sequence, run in zip(every, runs(piece.parents)):
        for index in path_to(piece.parents, run[-1]):
            of_tree[index].append(sequence)
    of_tokens = [every] * (count - len(of_tree)) + of_tree
    counts = np.array([len(sequences) for sequences in of_tokens], np.int32)
    return counts, np.array([one for sequences in of_tokens for one in sequences], np.int32)
