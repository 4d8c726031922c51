"""Segments -> one packed row of tokens, and the groups of equal shape in which attention runs over them.

A segment is cut at fixed positions (multiples of `span`), and the queries of a piece see keys padded to the end of
their span. So the shape a query is computed in depends on its position alone, never on its batch or its prompt chunk;
with rows and queries padded too, equal bits follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from verify_server.engine.base import Segment
from verify_server.engine.kv_memory import BLOCK_SIZE, KVMemory

# Keys gathered at once, in tokens: bounds the scratch memory (8 kB a token for 8 heads of 128 in float32).
GATHER_TOKENS = 32_768


@dataclass(frozen=True)
class Geometry:
    """What shapes are rounded up to."""

    rows: int  # packed rows, and rows of the output layer
    queries: int  # queries of a piece
    span: int  # positions; a multiple of BLOCK_SIZE


@dataclass(frozen=True)
class Attend:
    """How one layer attends."""

    layer: int
    scaling: float
    window: int | None = None  # a query sees the last `window` positions, its own included; None = all
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)


@dataclass(frozen=True)
class Piece:
    """Consecutive queries of one segment inside one span of positions."""

    row: int  # packed row of the first query
    position: int  # of the first query
    queries: int
    blocks: tuple[int, ...]  # KV blocks that cover positions [0, position + queries)
    padded_queries: int
    padded_keys: int  # end of the span


@dataclass
class Group:
    """Pieces of equal padded shape: B pieces of Q queries over K keys."""

    rows: Tensor  # [B * Q] packed row of each query; padding repeats a piece's last query
    positions: Tensor  # [B, Q] of each query
    live: Tensor  # [n] the queries that are not padding, as indices into B * Q
    live_rows: Tensor  # [n] the packed rows of those
    blocks: Tensor  # [B * K / BLOCK_SIZE]
    dead_keys: Tensor  # [m] indices into B * K of keys past their piece's end: padding or another session's leftovers
    num_keys: int  # K
    masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict)


@dataclass
class PackedBatch:
    """One step as the model sees it; reaches the attention function as an argument of the model call."""

    memory: KVMemory
    backend: str
    tokens: Tensor  # [1, rows] ids, padding 0
    positions: Tensor  # [1, rows]
    wanted: Tensor  # packed rows whose logits are wanted, padded by repeating the last
    num_wanted: int
    slots: Tensor  # [live rows] where each token's KV goes; padded rows are written nowhere
    groups: list[Group]
    calls: list[Attend] = field(default_factory=list)  # what the layers asked for, in order


def pack(
    segments: Sequence[Segment], geometry: Geometry, memory: KVMemory, backend: str, device: torch.device
) -> PackedBatch:
    """The packed batch of one step; row order is segment order."""
    tokens = [token for segment in segments for token in segment.tokens]
    positions = [segment.start + i for segment in segments for i in range(len(segment.tokens))]
    padding = [0] * (_round_up(len(tokens), geometry.rows) - len(tokens))
    wanted = _wanted(segments)
    num_wanted = len(wanted)
    wanted += wanted[-1:] * (_round_up(num_wanted, geometry.rows) - num_wanted)

    def tensor(values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=device)

    return PackedBatch(
        memory=memory,
        backend=backend,
        tokens=tensor(tokens + padding)[None],
        positions=tensor(positions + padding)[None],
        wanted=tensor(wanted),
        num_wanted=num_wanted,
        slots=tensor(np.concatenate([_slots(segment) for segment in segments])),
        groups=[_group(pieces, device) for pieces in _by_shape(segments, geometry)],
    )


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _wanted(segments: Sequence[Segment]) -> list[int]:
    wanted: list[int] = []
    end = 0
    for segment in segments:
        end += len(segment.tokens)
        wanted += range(end - segment.rows, end)
    return wanted


def _slots(segment: Segment) -> np.ndarray:
    positions = np.arange(segment.start, segment.start + len(segment.tokens))
    return np.asarray(segment.blocks)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE


def _pieces(segments: Sequence[Segment], geometry: Geometry) -> Iterator[Piece]:
    row = 0
    for segment in segments:
        position, end = segment.start, segment.start + len(segment.tokens)
        while position < end:
            span_end = (position // geometry.span + 1) * geometry.span
            count = min(end, span_end) - position
            padded = _round_up(count, geometry.queries)
            yield Piece(row, position, count, segment.blocks, padded, span_end)
            position, row = position + count, row + count


def _by_shape(segments: Sequence[Segment], geometry: Geometry) -> Iterator[list[Piece]]:
    """Pieces of equal padded shape together, in lots of at most GATHER_TOKENS keys."""
    shapes: dict[tuple[int, int], list[Piece]] = {}
    for piece in _pieces(segments, geometry):
        shapes.setdefault((piece.padded_queries, piece.padded_keys), []).append(piece)
    for (_, num_keys), pieces in shapes.items():
        lot = max(1, GATHER_TOKENS // num_keys)
        for first in range(0, len(pieces), lot):
            yield pieces[first : first + lot]


def _group(pieces: list[Piece], device: torch.device) -> Group:
    num_queries, num_keys = pieces[0].padded_queries, pieces[0].padded_keys
    counts = np.array([piece.queries for piece in pieces])[:, None]
    offsets = np.minimum(np.arange(num_queries), counts - 1)  # [B, Q]
    rows = np.array([piece.row for piece in pieces])[:, None] + offsets
    positions = np.array([piece.position for piece in pieces])[:, None] + offsets
    live = np.flatnonzero(np.arange(num_queries) < counts)
    ends = np.array([piece.position + piece.queries for piece in pieces])[:, None]

    def tensor(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=device)

    return Group(
        rows=tensor(rows.ravel()),
        positions=tensor(positions),
        live=tensor(live),
        live_rows=tensor(rows.ravel()[live]),
        blocks=tensor(np.concatenate([_padded_blocks(piece) for piece in pieces])),
        dead_keys=tensor(np.flatnonzero(np.arange(num_keys) >= ends)),
        num_keys=num_keys,
    )


def _padded_blocks(piece: Piece) -> np.ndarray:
    """The blocks that hold the piece's keys, then its first block again up to the padded length."""
    used = piece.blocks[: -(-(piece.position + piece.queries) // BLOCK_SIZE)]
    return np.array(used + used[:1] * (piece.padded_keys // BLOCK_SIZE - len(used)))
