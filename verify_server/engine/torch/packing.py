"""Segments -> one packed row of tokens. How attention runs over them is planned by its backend, once a step.

Some packed rows are positions of pictures: `Pictures` has what stands there in place of a token's embedding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from verify_server.engine.base import Segment
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch.tree_packing import slots_at


class Pictures(NamedTuple):
    """Rows of pictures in a packed batch."""

    rows: Tensor  # [n] packed rows
    values: Tensor  # [n, size] their embeddings


def pictures_in(segments: Sequence[Segment], device: torch.device) -> Pictures | None:
    """The rows of pictures that these segments compute; None = there are none."""
    if not any(segment.images for segment in segments):
        return None
    parts, row = [], 0
    for segment in segments:
        parts += [(row + first, values) for first, values in _parts(segment)]
        row += len(segment.tokens)
    if not parts:
        return None
    rows = torch.cat([torch.arange(first, first + len(values)) for first, values in parts])
    return Pictures(rows.to(device), torch.cat([values for _, values in parts]))


def _parts(segment: Segment) -> Iterator[tuple[int, Tensor]]:
    """Of each picture the rows in [start, start + n), and where in the segment they begin.

    Pictures stand in the prompt, so in the part of a segment that is no tree.
    """
    end = segment.start + len(segment.tokens)
    for first, rows in segment.images:
        low, high = max(first, segment.start), min(first + len(rows), end)
        if low < high:
            yield low - segment.start, rows[low - first : high - first]


@dataclass(frozen=True)
class Geometry:
    """What shapes are rounded up to."""

    rows: int  # packed rows, and rows of the output layer: see `padded_rows`
    queries: int  # queries of a piece
    span: int  # positions; a multiple of BLOCK_SIZE
    # A branch of a draft tree is computed like a chain: the same bits, but more keys to gather
    by_path: bool = False
    alone: bool = False  # each piece in an attention call of its own
    head_rows: int = 0  # most rows of the output layer computed at once, 0 = all; a multiple of `rows`
    tile: int = 0  # rows of every other matrix product, 0 = all of the step; a multiple of `rows`


def padded_rows(count: int, multiple: int) -> int:
    """How many rows are computed for `count`: a multiple of `multiple`, and of more where that costs a few percent.

    So few numbers of rows exist that all can be tried at load.
    """
    step = multiple if count <= 32 else max(multiple, 8) if count <= 128 else max(multiple, 32)
    return round_up(count, step)


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@dataclass(frozen=True)
class Attend:
    """How one layer attends."""

    layer: int
    scaling: float
    window: int | None = None  # a query sees the last `window` positions, its own included; None = all
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)


@dataclass
class PackedBatch:
    """One step as the model sees it; reaches the attention function as an argument of the model call."""

    memory: KVMemory
    backend: AttentionBackend
    tokens: Tensor  # [1, rows] ids, padding 0
    positions: Tensor  # [1, rows]
    wanted: Tensor  # packed rows whose logits are wanted, padded by repeating the last
    num_wanted: int
    slots: Tensor  # [live rows, or all of a fixed shape] where each token's KV goes
    tails: Tensor  # [n] slots behind the text in blocks that it has just entered: they may hold another's NaN
    plan: Any  # what the backend makes of the step
    live: int  # packed rows that are no padding, the first ones
    pictures: Pictures | None = None  # None: every row has the embedding of its token
    calls: list[Attend] = field(default_factory=list)  # what the layers asked for, in order


class AttentionBackend(ABC):
    """Computes the attention of each layer for a packed batch. It has no state of its own."""

    @abstractmethod
    def plan(self, segments: Sequence[Segment], geometry: Geometry, rows: int, device: torch.device) -> Any:
        """What all layers of a step of so many packed `rows` have in common: it becomes `PackedBatch.plan`."""

    @abstractmethod
    def attend(self, query: Tensor, batch: PackedBatch, how: Attend) -> Tensor:
        """One layer, whose keys and values are in KV: [rows, heads, size] -> [rows, heads, value size]; zeros for
        padded rows."""


def pack(
    segments: Sequence[Segment],
    geometry: Geometry,
    memory: KVMemory,
    backend: AttentionBackend,
    device: torch.device,
) -> PackedBatch:
    """The packed batch of one step; row order is segment order."""
    tokens, positions, slots, wanted = rows_of(segments)
    padding = [0] * (padded_rows(len(tokens), geometry.rows) - len(tokens))
    num_wanted = len(wanted)
    wanted += wanted[-1:] * (padded_rows(num_wanted, geometry.rows) - num_wanted)

    def tensor(values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=device)

    return PackedBatch(
        memory=memory,
        backend=backend,
        tokens=tensor(tokens + padding)[None],
        positions=tensor(positions + padding)[None],
        wanted=tensor(wanted),
        num_wanted=num_wanted,
        slots=tensor(slots),
        tails=tensor([slot for segment in segments for slot in _tail(segment)]),
        plan=backend.plan(segments, geometry, len(tokens + padding), device),
        live=len(tokens),
        pictures=pictures_in(segments, device),
    )


def rows_of(segments: Sequence[Segment]) -> tuple[list[int], list[int], np.ndarray, list[int]]:
    """Of each row its token, its position, and the slot where its KV goes; and the rows whose logits are wanted."""
    tokens = [token for segment in segments for token in segment.tokens]
    positions = [position for segment in segments for position in segment.positions()]
    slots = np.concatenate([_slots(segment) for segment in segments])
    return tokens, positions, slots, _output_rows(segments)


def _output_rows(segments: Sequence[Segment]) -> list[int]:
    wanted: list[int] = []
    end = 0
    for segment in segments:
        end += len(segment.tokens)
        wanted += range(end - segment.rows, end)
    return wanted


def _slots(segment: Segment) -> np.ndarray:
    return slots_at(segment.blocks, np.arange(segment.start, segment.start + len(segment.tokens)))


def _tail(segment: Segment) -> range:
    """Slots behind the segment in its last block, if no earlier segment has begun that block."""
    end = segment.start + len(segment.tokens)
    begun = end // BLOCK_SIZE * BLOCK_SIZE
    if end == begun or segment.start > begun:
        return range(0)
    first = segment.blocks[end // BLOCK_SIZE] * BLOCK_SIZE
    return range(first + end - begun, first + BLOCK_SIZE)
