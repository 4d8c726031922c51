"""Hidden states of the target as they travel to a device's draft head: int8, with a scale for each row.

A row is one hidden state at one position. Rows stand at positions of the text and depend on nothing but the text up to
there, so they may come late, twice, or not at all (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from opensled.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HIDDEN = "hidden:"  # before the number of a hidden state; see Open.features in proto/
INT8, LARGEST = "int8", 127
MAX_LAYERS = 8  # hidden states of one position
NEWEST = 128  # positions of which rows are kept and sent, at most
MAX_BYTES = 1 << 21  # of the rows of one verdict
SCALE_BYTES = 4
LARGEST_SCALE = 1e30  # no hidden state is so large; 127 times this is a float32


class FeatureRows(NamedTuple):
    """Hidden states at consecutive positions."""

    first: int  # position of the first
    size: int  # elements of one hidden state
    scales: tuple[float, ...]  # of each position and layer, row-major
    data: bytes  # int8 [positions, layers, size]
    layers: tuple[int, ...]  # in the order in which Open asked for them

    @property
    def positions(self) -> range:
        """In the text."""
        return range(self.first, self.first + len(self.scales) // len(self.layers))

    def states(self) -> NDArray[np.float32]:
        """[positions, layers, size]."""
        import numpy as np

        scales = np.array(self.scales, np.float32)[:, None]
        flat = np.frombuffer(self.data, np.int8).reshape(len(scales), self.size) * scales
        return flat.reshape(len(self.positions), len(self.layers), self.size)


def names_of(layers: Iterable[int]) -> tuple[str, ...]:
    """For Open.features."""
    return tuple([f"{HIDDEN}{layer}" for layer in layers])


def layers_of(names: Sequence[str]) -> tuple[int, ...]:
    """The hidden states that Open.features names. Raises InvalidRequest."""
    if len(names) > MAX_LAYERS:
        raise InvalidRequest(
            f"{len(names)} features: a sequence may ask for at most {MAX_LAYERS}", "features"
        )
    layers = tuple([_layer(name) for name in names])
    if len(set(layers)) < len(layers):
        raise InvalidRequest("the same hidden state is asked for twice", "features")
    return layers


def _layer(name: str) -> int:
    number = name.removeprefix(HIDDEN)
    if number == name or not (number.isascii() and number.isdigit() and len(number) <= 4):
        raise InvalidRequest(f"{name[:80]!r} is no feature; ask for {HIDDEN}N, such as {HIDDEN}0", "features")
    return int(number)


def most_rows(layers: int, size: int, asked: int = 0) -> int:
    """Positions whose rows one verdict may carry; `asked`: at most so many, 0 = the device wants all."""
    return max(1, min(asked or NEWEST, NEWEST, MAX_BYTES // (layers * (size + SCALE_BYTES))))


def check_rows(runs: Sequence[FeatureRows]) -> None:
    """Raises InvalidRequest for rows of one verdict that overlap, do not ascend, or are too many."""
    size = sum([len(run.data) + SCALE_BYTES * len(run.scales) for run in runs])
    if size > MAX_BYTES or sum([len(run.positions) for run in runs]) > NEWEST:
        raise InvalidRequest(
            f"{size} bytes of features: a verdict has at most {MAX_BYTES}, of {NEWEST} positions", "features"
        )
    if any(before.positions.stop > after.first for before, after in pairwise(runs)):
        raise InvalidRequest("features come in the order of their positions, each position once", "features")
