"""A GGUF file in less room and without loss: byte k of all blocks of a tensor side by side, then zlib.

Scales and quants of a block have nothing in common; beside their like they are coded with fewer bits.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from opensled.core.errors import NotFound, UnsupportedModel
from opensled.core.files import write_whole
from opensled.models.draft_assembly import BLOCKS, tensor_bytes
from opensled.models.gguf_file import read_head


def pack(path: Path, packed: Path) -> None:
    """Raises NotFound, UnsupportedModel."""
    write_whole(packed, zlib.compress(_transpose(path, path.read_bytes(), back=False), 9))


def unpack(packed: Path, path: Path) -> None:
    """Raises NotFound, or UnsupportedModel for a file that is damaged."""
    try:
        content = zlib.decompress(packed.read_bytes())
    except OSError as error:
        raise NotFound(
            f"{packed} cannot be read: {error.strerror}; install OpenSLED again", "model"
        ) from error
    except zlib.error as error:
        raise UnsupportedModel(f"{packed} is damaged: {error}; install OpenSLED again") from error
    path.write_bytes(content)  # the head says where the tensors are, and is the same
    path.write_bytes(_transpose(path, content, back=True))


def _transpose(path: Path, content: bytes, back: bool) -> bytes:
    """`content` with all tensors of the head in `path` turned: rows of bytes are blocks, or the other way round."""
    turned = bytearray(content)
    for info in read_head(path).tensors.values():
        width, size = BLOCKS[info.kind][1], tensor_bytes(info)
        place = slice(info.start, info.start + size)
        blocks = np.frombuffer(content[place], np.uint8).reshape((width, -1) if back else (-1, width))
        turned[place] = blocks.T.tobytes()
    return bytes(turned)
