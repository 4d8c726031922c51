"""What a step's attention is for kernels that read KV where it lies: one table of whole numbers, made on the host.

Rows are computed in tiles of up to TILE_ROWS consecutive rows that read the same *context*: the KV blocks of a text,
and up to MAX_TREE slots that follow it in another order, those of a draft tree or of a path through one. A text's
tokens see the places up to their own; which tree tokens a row sees are the bits of a number.

At level exact each branch of a tree is a context of its own, its keys in the order of its path (`Geometry.by_path`): to
its rows it is a chain, with a chain's bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from opensled.core.trees import depths, path_to, runs
from verify_server.engine.base import MAX_TREE, Segment
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.packing import AttentionBackend, Geometry
from verify_server.engine.torch.tree_packing import slots_at

TILE_ROWS = 16  # of a tile, at most
TILE, ROW, CONTEXT = 5, 5, 2  # numbers of each
FAR = 2**31 - 1  # a place that no text has


class PagedShape(NamedTuple):
    """How large a table is; what is not used is 0, and computes nothing."""

    rows: int
    tiles: int
    contexts: int
    blocks: int  # of a context

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of each part of the table."""
        contexts = self.contexts
        near = contexts * MAX_TREE
        return self.tiles * TILE, self.rows * ROW, contexts * CONTEXT, contexts * self.blocks, near, near


class PagedTable(NamedTuple):
    """int32 tensors, views of one buffer."""

    tiles: Tensor  # [tiles, TILE]: context, first row, rows (0 = none), keys' end, lowest position of a row
    rows: Tensor  # [rows, ROW]: last place of the text seen, position, two halves of the tree bits, keys' end
    contexts: Tensor  # [contexts, CONTEXT]: the place where the tree or path begins, keys' end
    blocks: Tensor  # [contexts, blocks]
    near: Tensor  # [contexts, MAX_TREE] slots of the tree's or path's tokens
    depths: Tensor  # [contexts, MAX_TREE] how many positions each of them stands behind the text's last one

    @classmethod
    def over(cls, buffer: Tensor, shape: PagedShape) -> PagedTable:
        """Views of a buffer of sum(shape.sizes) numbers."""
        parts = buffer.split(shape.sizes)
        widths = (TILE, ROW, CONTEXT, shape.blocks, MAX_TREE, MAX_TREE)
        return cls(*[part.view(-1, width) for part, width in zip(parts, widths)])

    @property
    def max_keys(self) -> int:
        """Places of the longest context that the table has room for."""
        return self.blocks.shape[1] * BLOCK_SIZE + MAX_TREE


class _Reading(NamedTuple):
    """Consecutive rows that read one context."""

    row: int  # the first
    segment: Segment
    places: np.ndarray  # [n] of each row in its context
    positions: np.ndarray  # [n]
    bits: Sequence[int]  # [n]
    near: np.ndarray  # slots behind the text, in order of place
    near_depths: np.ndarray

    @property
    def text_end(self) -> int:
        return self.segment.tree_start if len(self.near) else FAR

    @property
    def key_ends(self) -> np.ndarray:
        """[n]: behind the last place that a row sees."""
        return self.places + 1


class PagedPlan:
    """A step's numbers on the host, for a table of any shape that has room for them."""

    def __init__(self, segments: Sequence[Segment], by_path: bool) -> None:
        self._parts = list(_parts(segments, by_path))
        self._tiles = [tile for number, part in enumerate(self._parts) for tile in _tiles(number, part)]
        rows = sum(len(segment.tokens) for segment in segments)
        blocks = max(len(_blocks(part)) for part in self._parts)
        self.shape = PagedShape(rows, len(self._tiles), len(self._parts), blocks)

    def write(self, buffer: np.ndarray, shape: PagedShape) -> None:
        """Fills an int32 `buffer` of sum(shape.sizes) numbers."""
        buffer[:] = 0
        tiles, rows, contexts, blocks, near, near_depths = PagedTable.over(torch.from_numpy(buffer), shape)
        tiles.numpy()[: len(self._tiles)] = self._tiles
        for number, part in enumerate(self._parts):
            rows.numpy()[part.row : part.row + len(part.places)] = _rows(part)
            contexts.numpy()[number] = part.text_end, part.key_ends.max()
            own = _blocks(part)
            blocks.numpy()[number, : len(own)] = own
            near.numpy()[number, : len(part.near)] = part.near
            near_depths.numpy()[number, : len(part.near)] = part.near_depths


class PagedBackend(AttentionBackend):
    """A backend that reads KV by a table, so that it can run in fixed shapes."""

    def plan(
        self, segments: Sequence[Segment], geometry: Geometry, rows: int, device: torch.device
    ) -> PagedTable:
        """A table as large as the step."""
        plan = PagedPlan(segments, geometry.by_path)
        shape = plan.shape._replace(rows=rows)
        buffer = np.empty(sum(shape.sizes), np.int32)
        plan.write(buffer, shape)
        return PagedTable.over(torch.from_numpy(buffer).to(device), shape)


def _blocks(part: _Reading) -> tuple[int, ...]:
    """Those of the text, and of a tree as well where it lies in them in order of its places."""
    return part.segment.blocks[: -(-int(min(part.key_ends.max(), part.text_end)) // BLOCK_SIZE)]


def _rows(part: _Reading) -> np.ndarray:
    """[n, ROW]."""
    bits = np.array(part.bits, np.uint64)
    halves = (bits & np.uint64(2**32 - 1)).astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
    low, high = (half.view(np.int32) for half in halves)
    seen = np.minimum(part.places, part.text_end - 1)
    return np.stack([seen, part.positions, low, high, part.key_ends], axis=1)


def _tiles(number: int, part: _Reading) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(part.places), TILE_ROWS):
        rows = slice(first, first + TILE_ROWS)
        ends, positions = part.key_ends[rows], part.positions[rows]
        yield number, part.row + first, len(ends), int(ends.max()), int(positions.min())


def _parts(segments: Sequence[Segment], by_path: bool) -> Iterator[_Reading]:
    firsts = accumulate([len(segment.tokens) for segment in segments], initial=0)
    for row, segment in zip(firsts, segments):
        if not segment.parents:
            yield _text(row, segment, len(segment.tokens))
        elif by_path:
            yield from _branches(row, segment)
        else:
            yield _with_tree(row, segment)


def _text(row: int, segment: Segment, count: int) -> _Reading:
    """The first `count` tokens, which lie in order."""
    places = np.arange(segment.start, segment.start + count)
    none = np.empty(0, np.int64)
    return _Reading(row, segment, places, places, [0] * count, none, none)


def _with_tree(row: int, segment: Segment) -> _Reading:
    """Text and tree together; the bits of a tree's row are its ancestors and itself."""
    bits: list[int] = []
    for index, parent in enumerate(segment.parents):
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << index)
    count = len(segment.tokens)
    places = np.arange(segment.start, segment.start + count)
    near = slots_at(segment.blocks, places[count - len(bits) :])
    known = [0] * (count - len(bits))
    return _Reading(
        row,
        segment,
        places,
        np.array(segment.positions()),
        known + bits,
        near,
        np.array(depths(segment.parents)),
    )


def _branches(row: int, segment: Segment) -> Iterator[_Reading]:
    """What comes before the tree and its first run together, for they lie in order; then the other runs."""
    known = len(segment.tokens) - len(segment.parents)
    first, *others = runs(segment.parents)
    yield _text(row, segment, known + len(first))
    for run in others:
        path = np.array([*path_to(segment.parents, run[0]), *run[1:]])
        depth = np.arange(1, len(path) + 1)
        places = segment.tree_start - 1 + depth[-len(run) :]
        bits = [(1 << int(each)) - 1 for each in depth[-len(run) :]]
        near = slots_at(segment.blocks, segment.tree_start + path)
        yield _Reading(row + known + run[0], segment, places, places, bits, near, depth)
