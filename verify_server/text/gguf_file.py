"""Reading the metadata of a GGUF file: the tokenizer and the chat template it carries.

llama.cpp's API gives single values only, no arrays such as the merges of a BPE. The format is specified in ggml's
docs/gguf.md: magic, version, counts, then (key, type, value) triples, little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from opensled.errors import NotFound, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
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


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of a GGUF file with their values: a number, bool, text, or a list of them.

    Raises NotFound, or UnsupportedModel for a file that is damaged or not GGUF.
    """
    try:
        with path.open("rb") as file:
            return dict(_pairs(_MetadataReader(file)))
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", "model") from error
    except (ValueError, struct.error) as error:
        raise UnsupportedModel(
            f"{path} is no GGUF file that can be read: {error}; download it again"
        ) from error


def _pairs(reader: _MetadataReader) -> Iterator[tuple[str, Any]]:
    if reader.take(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.number(4)
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, not {' or '.join(map(str, VERSIONS))}")
    reader.number(10)  # how many tensors
    for _ in range(reader.number(10)):
        key = reader.text()
        yield key, reader.value(reader.number(4))


class _MetadataReader:
    """Reads typed values from a file; raises ValueError if it ends too early or is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size  # bytes: bounds the counts that the file states

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise ValueError("it ends in the middle of its metadata")
        self._left -= count
        return self._file.read(count)

    def number(self, kind: int) -> Any:
        return self._numbers(kind, 1)[0]

    def text(self) -> str:
        return self.take(self.number(10)).decode("utf-8", "replace")

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
