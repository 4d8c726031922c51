"""What a step's attention is for torch's own kernel: groups of pieces of equal padded shape.

A segment is cut at fixed positions (multiples of `span`), and the queries of a piece see keys padded to the end of
their span. So the shape a query is computed in depends on its position alone, never on its batch or its prompt chunk;
with rows and queries padded too, equal bits follow.

The tokens of a draft tree lie in KV in their own order: a token's *place* there is not its position in the text. Either
a mask says which query sees which key, or (`by_path`) each branch attends alone, over keys gathered in the order of its
own path. To its queries such a branch is a chain, with a chain's bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from opensled.core.trees import path_to, runs
from verify_server.engine.base import Segment
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.packing import Geometry, round_up
from verify_server.engine.torch.tree_packing import Branches, Piece, Trees, branches_of, trees_of

# Keys gathered at once, in tokens: bounds the scratch memory (8 kB a token for 8 heads of 128 in float32).
GATHER_TOKENS = 32_768


@dataclass
class Group:
    """Pieces of equal padded shape: B pieces of Q queries over K keys."""

    rows: Tensor  # [B * Q] packed row of each query; padding repeats a piece's last query
    places: Tensor  # [B, Q] of each query: it sees no key behind it
    live: Tensor  # [n] the queries that are not padding, as indices into B * Q
    live_rows: Tensor  # [n] the packed rows of those
    blocks: Tensor  # [B * K / BLOCK_SIZE]
    num_keys: int  # K
    whole: bool  # the queries are all packed rows, in their order and without padding
    branches: Branches | None = None
    trees: Trees | None = None
    masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict)


def groups_of(
    segments: Sequence[Segment], geometry: Geometry, packed_rows: int, device: torch.device
) -> list[Group]:
    """Of one step whose packed batch has so many rows, padding included."""
    return [_group(pieces, packed_rows, device) for pieces in _by_shape(segments, geometry)]


def _pieces(segments: Sequence[Segment], geometry: Geometry) -> Iterator[Piece]:
    row = 0
    for segment in segments:
        count = len(segment.tokens)
        if segment.parents and geometry.by_path:
            yield from _branches(segment, row, geometry)
        else:
            tree = segment if segment.parents else None
            yield from _cut(geometry, row, segment.start, count, segment.blocks, tree=tree)
        row += count


def _cut(
    geometry: Geometry,
    row: int,
    place: int,
    count: int,
    blocks: tuple[int, ...],
    path: tuple[int, ...] = (),
    tree: Segment | None = None,
) -> Iterator[Piece]:
    """`count` queries from `row` and `place` on, cut at the ends of spans."""
    end = place + count
    first = end - len(path)  # position where the path of a branch begins
    while place < end:
        span_end = (place // geometry.span + 1) * geometry.span
        count = min(end, span_end) - place
        padded = round_up(count, geometry.queries)
        own = tree if tree and tree.tree_start < place + count else None
        yield Piece(row, place, count, blocks, padded, span_end, path[: place + count - first], own)
        place, row = place + count, row + count


def _branches(segment: Segment, row: int, geometry: Geometry) -> Iterator[Piece]:
    """What comes before the tree and its first run together, for they lie in order; then the other runs."""
    parents, tree, blocks = segment.parents, segment.tree_start, segment.blocks
    known = tree - segment.start
    first, *others = runs(parents)
    yield from _cut(geometry, row, segment.start, known + len(first), blocks)
    for run in others:
        path = tuple([tree + index for index in (*path_to(parents, run[0]), *run[1:])])
        position = tree + len(path) - len(run)
        yield from _cut(geometry, row + known + run[0], position, len(run), blocks, path)


def _by_shape(segments: Sequence[Segment], geometry: Geometry) -> Iterator[list[Piece]]:
    """Pieces of equal padded shape together, in lots of at most GATHER_TOKENS keys."""
    shapes: dict[tuple[int, int, bool], list[Piece]] = {}
    for piece in _pieces(segments, geometry):
        shape = (piece.padded_queries, piece.padded_keys, piece.tree is not None)
        shapes.setdefault(shape, []).append(piece)
    for (_, num_keys, _), pieces in shapes.items():
        lot = 1 if geometry.alone else max(1, GATHER_TOKENS // num_keys)
        for first in range(0, len(pieces), lot):
            yield pieces[first : first + lot]


def _group(pieces: list[Piece], packed_rows: int, device: torch.device) -> Group:
    num_queries, num_keys = pieces[0].padded_queries, pieces[0].padded_keys
    counts = np.array([piece.queries for piece in pieces])[:, None]
    offsets = np.minimum(np.arange(num_queries), counts - 1)  # [B, Q]
    rows = np.array([piece.row for piece in pieces])[:, None] + offsets
    places = np.array([piece.place for piece in pieces])[:, None] + offsets
    live = np.flatnonzero(np.arange(num_queries) < counts)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=device)

    return Group(
        rows=tensor(rows.ravel()),
        places=tensor(places),
        live=tensor(live),
        live_rows=tensor(rows.ravel()[live]),
        blocks=tensor(np.concatenate([_padded_blocks(piece) for piece in pieces])),
        num_keys=num_keys,
        whole=np.array_equal(rows.ravel(), np.arange(packed_rows)),
        branches=branches_of(pieces, device) if any(piece.path for piece in pieces) else None,
        trees=trees_of(pieces, places, device) if pieces[0].tree else None,
    )


def _padded_blocks(piece: Piece) -> np.ndarray:
    """The blocks that hold the piece's keys, then its first block again up to the padded length."""
    used = piece.blocks[: -(-(piece.place + piece.queries) // BLOCK_SIZE)]
    return np.array(used + used[:1] * (piece.padded_keys // BLOCK_SIZE - len(used)))
