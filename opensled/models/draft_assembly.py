"""A draft model made of two files: the layers that OpenSLED ships, and the embedding of the target that was fetched.

The format is that of ggml's docs/gguf.md. Keys and tensors are copied as bytes; the file of the layers wins.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from opensled.core.errors import UnsupportedModel
from opensled.models.gguf_file import ALIGNMENT, MAGIC, VERSIONS, Head, TensorInfo, align, read_head

EMBEDDING = "token_embd.weight"
# ggml's number of a type -> its elements in a block, and the bytes of a block: F32, F16, Q4_0, Q4_1, Q8_0.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}


class Part(NamedTuple):
    """A tensor of a file to write, and what gives its bytes."""

    name: str
    info: TensorInfo  # its place is that in the file it comes from
    content: Callable[[], bytes]


def assemble_gguf(layers: Path, target: Path, path: Path) -> None:
    """Write the draft model to `path`: keys and embedding of `target`, keys and tensors of `layers`.

    An embedding in `layers` takes the place of the target's.

    Raises NotFound, or UnsupportedModel for files that do not belong together.
    """
    own, base = read_head(layers), read_head(target)
    _require_fit(own, base, target)
    with layers.open("rb") as own_file, target.open("rb") as base_file, path.open("wb") as sink:
        parts = [_part(own_file, name, own) for name in own.tensors]
        if EMBEDDING not in own.tensors:
            parts.insert(0, _part(base_file, EMBEDDING, base))
        keys = {key: (base_file, span) for key, span in base.spans.items()}
        keys |= {key: (own_file, span) for key, span in own.spans.items()}
        write_gguf(sink, keys, parts)


def write_gguf(
    sink: BinaryIO, keys: Mapping[str, tuple[BinaryIO, tuple[int, int]]], parts: Sequence[Part]
) -> None:
    """`keys`: the file of each, and its span there. Raises UnsupportedModel for one that is cut off."""
    sink.write(MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(parts), len(keys)))
    for file, (first, end) in keys.values():
        sink.write(_read(file, first, end - first))
    for piece in _table(parts):
        sink.write(piece)
    for part in parts:
        sink.write(bytes(align(sink.tell(), ALIGNMENT) - sink.tell()))
        sink.write(part.content())
    sink.flush()
    os.fsync(sink.fileno())


def _require_fit(own: Head, base: Head, target: Path) -> None:
    size = own.metadata.get("llama.embedding_length")
    embedding = base.tensors.get(EMBEDDING)
    if embedding is None or base.metadata.get("llama.embedding_length") != size:
        raise UnsupportedModel(
            f"{target} is not the target that the layers of this draft model were cut from"
        )


def _part(file: BinaryIO, name: str, head: Head) -> Part:
    info = head.tensors[name]
    if info.kind not in BLOCKS:
        raise UnsupportedModel(f"{file.name} holds {name} in a type (number {info.kind}) that is not copied")
    return Part(name, info, partial(_read, file, info.start, tensor_bytes(info)))


def tensor_bytes(info: TensorInfo) -> int:
    """How many bytes of its file a tensor takes; its kind is one of `BLOCKS`."""
    elements, size = BLOCKS[info.kind]
    count = 1
    for length in info.shape:
        count *= length
    return count // elements * size


def _table(parts: Sequence[Part]) -> Iterator[bytes]:
    """Name, shape (columns first), type and place of every tensor."""
    place = 0
    for part in parts:
        name, shape = part.name.encode(), part.info.shape[::-1]
        yield struct.pack("<Q", len(name)) + name
        yield struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, part.info.kind, place)
        place = align(place + tensor_bytes(part.info), ALIGNMENT)


def _read(file: BinaryIO, first: int, size: int) -> bytes:
    file.seek(first)
    found = file.read(size)
    if len(found) != size:
        raise UnsupportedModel(f"{file.name} is cut off; fetch it again")
    return found
