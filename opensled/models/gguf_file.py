"""Reading the head of a GGUF file: its metadata, tokenizer and chat template among it, and the list of its tensors.

llama.cpp's API gives single values only, no arrays such as the merges of a BPE. The format is specified in ggml's
docs/gguf.md: magic, version, counts, then (key, type, value) triples, little-endian.
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from opensled.core.errors import NotFound, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, where a file states none
STRING, ARRAY, BOOL = 8, 9, 7
# Value type -> numpy dtype.
NUMBERS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class TensorInfo(NamedTuple):
    """One tensor of a file."""

    shape: tuple[int, ...]  # in elements, rows first
    kind: int  # ggml's number of the type of its elements or blocks
    start: int  # byte of the file where it begins


class Head(NamedTuple):
    """All of a GGUF file but the numbers of its tensors."""

    metadata: dict[str, Any]  # a number, bool, text, or a list of them
    tensors: dict[str, TensorInfo]
    spans: dict[str, tuple[int, int]]  # first byte of each key with its value, and the byte after it


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of a GGUF file with their values. Raises as `read_head` does."""
    return read_head(path).metadata


def read_head(path: Path) -> Head:
    """Raises NotFound, or UnsupportedModel for a file that is damaged or not GGUF."""
    try:
        found = path.stat()
        return _read(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", "model") from error
    except (ValueError, struct.error) as error:
        raise UnsupportedModel(f"{path} is not a readable GGUF file: {error}; download it again") from error


@lru_cache(maxsize=1)
def _read(path: Path, modified: int, size: int) -> Head:
    """Config, weights and tokenizer of one load all ask for the head, and 49k tokens take 0.2 s to parse."""
    with path.open("rb") as file:
        return _head(_MetadataReader(file))


def read_opening(path: Path) -> tuple[dict[str, Any], dict[str, TensorInfo] | None]:
    """The keys, which say what a file is, without the values of arrays, and its tensors (`start` counts from the first
    one's); None, and the keys before the damage, of a damaged file."""
    keys: dict[str, Any] = {}
    try:
        with path.open("rb") as file:
            reader = _MetadataReader(file)
            tensors, pairs = _begin(reader)
            for _ in range(pairs):
                key, kind = reader.text(), reader.number(4)
                keys[key] = None if kind == ARRAY else reader.value(kind)
                if kind == ARRAY:
                    reader.pass_over()
            return keys, {reader.text(): _tensor(reader) for _ in range(tensors)}
    except (OSError, ValueError, struct.error):
        return keys, None


def _begin(reader: _MetadataReader) -> tuple[int, int]:
    """How many tensors and keys follow."""
    if reader.take(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.number(4)
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, not {' or '.join(map(str, VERSIONS))}")
    return reader.number(10), reader.number(10)


def _head(reader: _MetadataReader) -> Head:
    tensors, pairs = _begin(reader)
    metadata: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(pairs):
        first, key = reader.place, reader.text()
        metadata[key] = reader.value(reader.number(4))
        spans[key] = first, reader.place
    listed = {reader.text(): _tensor(reader) for _ in range(tensors)}
    begin = align(reader.place, metadata.get("general.alignment", ALIGNMENT))
    found = {name: info._replace(start=begin + info.start) for name, info in listed.items()}
    return Head(metadata, found, spans)


def align(place: int, alignment: object) -> int:
    """The first byte at or after `place` that the file lets a tensor begin at."""
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"its alignment is {alignment!r}, not a number of bytes")
    return -(-place // alignment) * alignment


def _tensor(reader: _MetadataReader) -> TensorInfo:
    """`start` counts from the first tensor's."""
    shape = [reader.number(10) for _ in range(reader.number(4))]
    return TensorInfo(tuple(reversed(shape)), reader.number(4), reader.number(10))


class _MetadataReader:
    """Reads typed values from a file; raises ValueError if it ends too early or is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size  # bytes: bounds the counts that the file states

    @property
    def place(self) -> int:
        """Bytes read."""
        return self._file.tell()

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise ValueError("it ends in the middle of its metadata")
        self._left -= count
        return self._file.read(count)

    def number(self, kind: int) -> Any:
        return self._numbers(kind, 1)[0]

    def text(self) -> str:
        return self.take(self.number(10)).decode("utf-8", "replace")

    def pass_over(self) -> None:
        """An array, which may hold a vocabulary: as texts it would take five times as long."""
        kind, count = self.number(4), self.number(10)
        if kind != STRING:
            self.take(count * np.dtype(NUMBERS.get(kind, "u1")).itemsize)
            return
        for _ in range(count):
            self.take(int.from_bytes(self.take(8), "little"))

    def value(self, kind: int) -> Any:
        if kind == ARRAY:
            return self._array(self.number(4), self.number(10))
        return self._array(kind, 1)[0]

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == STRING:
            if count * 8 > self._left:
                raise ValueError("it ends in the middle of its metadata")
            return [self.text() for _ in range(count)]
        if kind == BOOL:
            return [byte != 0 for byte in self.take(count)]
        return self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in NUMBERS:
            raise ValueError(f"it holds a value of unknown type {kind}")
        dtype = np.dtype(NUMBERS[kind])
        found: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return found
