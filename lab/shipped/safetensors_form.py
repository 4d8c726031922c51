"""Safetensors: reading them with numpy alone, and the form of a model that is made of whole numbers of 8 bits.

Such numbers lie in a file of the same format. `NAME` is int8, `NAME.scales` has a float16 for each `EIGHTS` of a row.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EIGHTS = 32  # numbers that share a scale, as in Q8_0 of GGUF
LARGEST = 127  # of them
SCALES = ".scales"
DTYPES = {"F16": "<f2", "F32": "<f4", "I8": "i1"}


class WeightsFile(NamedTuple):
    """A file that numbers are in."""

    file: str  # relative to the model's folder
    prefix: str = ""  # of the names of its tensors


class TensorFile:
    """Its tensors: 8 bytes for the length of a JSON object that lists them, it, their numbers."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._content, self._prefix = path.read_bytes(), prefix
        self._listed, self._first = read_header(self._content)

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._listed

    def __getitem__(self, name: str) -> np.ndarray:
        values = self._read(name)
        if name + SCALES not in self:
            return values
        groups = values.astype(np.float32).reshape(-1, EIGHTS) * self._read(name + SCALES).reshape(-1, 1)
        return groups.reshape(values.shape)

    def _read(self, name: str) -> np.ndarray:
        found = self._listed[self._prefix + name]
        begin, end = (self._first + place for place in found["data_offsets"])
        return np.frombuffer(self._content[begin:end], DTYPES[found["dtype"]]).reshape(found["shape"])


def read_header(content: bytes) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, and the byte that their numbers begin at."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), 8 + length


def join(path: Path, folder: Path, sources: Sequence[WeightsFile]) -> bytes:
    """The whole file, of its head in `path` and one source."""
    content = path.read_bytes()
    [source] = sources
    weights = TensorFile(folder / source.file, source.prefix)
    tensors = {name: found for name, found in read_header(content)[0].items() if name != "__metadata__"}
    ordered = sorted(tensors, key=lambda name: tensors[name]["data_offsets"])
    parts = (weights[name].astype(DTYPES[tensors[name]["dtype"]]).tobytes() for name in ordered)
    return b"".join([content, *parts])


def eights(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of 8 bits, and scales as float16 [groups, 1], rounded as gguf-py rounds: halves away from zero."""
    groups = groups.astype(np.float32)
    scales = np.abs(groups).max(-1, keepdims=True) / np.float32(LARGEST)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales == 0, np.float32(0), 1 / scales)
    steps = groups * inverse
    size = np.abs(steps)
    whole = np.floor(size)
    rounded = np.sign(steps) * (whole + np.floor(2 * (size - whole)))
    return rounded.astype(np.int8), scales.astype("<f2")
