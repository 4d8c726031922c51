"""Which packed rows of a step are positions of pictures, and what stands there in place of a token's embedding."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from verify_server.engine.base import Segment


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
