"""What packed attention computes at once for one sequence, and where draft trees lie in it.

Of a tree: which keys lie elsewhere, and which query sees which key.

The tokens of a tree lie in KV in their own order, so a token's *place* there is not its position in the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from verify_server.engine.base import Segment
from verify_server.engine.torch.kv_memory import BLOCK_SIZE


@dataclass(frozen=True)
class Piece:
    """Consecutive queries of one segment inside one span of places."""

    row: int  # packed row of the first query
    place: int  # of the first query; of a branch by path, its position
    queries: int
    blocks: tuple[int, ...]  # KV blocks that cover places [0, place + queries)
    padded_queries: int
    padded_keys: int  # end of the span
    path: tuple[int, ...] = ()  # of a branch by path: the places of its last keys, up to the last query's own
    tree: Segment | None = None  # some of its keys are those of this segment's tree, which a mask tells apart


@dataclass(frozen=True)
class Branches:
    """Keys of a group's branches by path, which their blocks hold elsewhere."""

    keys: Tensor  # [n] indices into B * K
    slots: Tensor  # [n] where they are


@dataclass(frozen=True)
class Trees:
    """Which query sees which key in a group of pieces with draft trees, beside the order of places."""

    strangers: Tensor  # [B, Q, K] bool: the key is of the tree, but not on the query's path
    positions: Tensor  # [B, Q] of each query, for windows
    key_positions: Tensor  # [B, K]


def slots_at(blocks: Sequence[int], places: np.ndarray) -> np.ndarray:
    """Where in the KV memory a session's `places` are."""
    return np.asarray(blocks)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE


def branches_of(pieces: Sequence[Piece], device: torch.device) -> Branches:
    """Of the pieces of a group, those with a path."""
    keys, slots = [], []
    for number, piece in enumerate(pieces):
        end = number * piece.padded_keys + piece.place + piece.queries
        keys.append(np.arange(end - len(piece.path), end))
        slots.append(slots_at(piece.blocks, np.array(piece.path, int)))
    return Branches(_tensor(np.concatenate(keys), device), _tensor(np.concatenate(slots), device))


def trees_of(pieces: Sequence[Piece], places: np.ndarray, device: torch.device) -> Trees:
    """Of a group whose pieces all have trees; `places` [B, Q] of their queries."""
    num_keys = pieces[0].padded_keys
    strangers = np.zeros((*places.shape, num_keys), bool)
    positions, key_positions = places.copy(), np.tile(np.arange(num_keys), (len(pieces), 1))
    for number, piece in enumerate(pieces):
        tree = piece.tree
        assert tree is not None, "pieces with a tree are in groups of their own"
        found = np.array(tree.positions())
        positions[number] = found[places[number] - tree.start]
        keys = slice(tree.start, min(tree.start + len(found), num_keys))
        key_positions[number, keys] = found[: keys.stop - keys.start]
        _mark(strangers[number], places[number], tree)
    return Trees(_tensor(strangers, device), _tensor(positions, device), _tensor(key_positions, device))


def _mark(strangers: np.ndarray, places: np.ndarray, segment: Segment) -> None:
    """Set [Q, K] where a query at `places` [Q] is in the tree and the key is, too, but not on its path."""
    first = segment.tree_start
    keys = slice(first, min(first + len(segment.parents), strangers.shape[1]))
    queries = np.flatnonzero(places >= first)
    own = ancestors(segment.parents)[places[queries] - first]
    strangers[queries, keys] = ~own[:, : keys.stop - keys.start]


def _tensor(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.as_tensor(values, device=device)


def ancestors(parents: Sequence[int]) -> np.ndarray:
    """[n, n] bool: row i tells which tokens are on the path to token i, itself included."""
    bits: list[int] = []
    for index, parent in enumerate(parents):
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << index)
    numbers = np.array(bits, np.uint64)[:, None]
    return (numbers >> np.arange(len(bits), dtype=np.uint64) & np.uint64(1)).astype(bool)
