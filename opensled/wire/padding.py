"""Padding: frames whose sizes do not tell what they carry. A wrapper of the bytes of a stream, on both ends.

A frame is one message on the wire. The metadata of a call ask for padding, and those of the answer grant it; what
reads messages ignores their padding. docs/protocol.md has the rules. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

PADDING = "padding"  # the capability of a server that pads the streams whose devices ask for it
PADDING_REQUIRED = "padding-required"  # the capability of a server that serves no other streams

METADATA = (("opensled-padding", "1"),)  # asks for padding, or grants it

# Bytes. Chosen: a block of 16 tokens and its verdict fit twice, a draft tree of 60 tokens of a 150k vocabulary once.
FRAME_BYTES = 256
# Bytes of the first frame. Chosen: most questions of a chat and their token ids fit.
OPENING_BYTES = 1024

TAG = b"\x7a"  # of the field `padding` on the wire: number 15, with a length


def is_padded(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether the metadata of a call ask for padding, or grant it."""
    return any(each in METADATA for each in map(tuple, metadata or ()))


class Padding:
    """Brings the messages of one direction of a stream, which are encoded, to the sizes of frames."""

    def __init__(self) -> None:
        self._least = OPENING_BYTES

    def __call__(self, data: bytes) -> bytes:
        least, self._least = self._least, FRAME_BYTES
        return data + padding(padded_size(len(data), least) - len(data))


def padded_size(size: int, least: int) -> int:
    """The size of a frame of `size` bytes: the first of `least` times 1, 2, 4, ... that padding can bring it to."""
    padded = least
    while padded != size and padded < size + 2:  # the smallest padding is a tag and a length
        padded *= 2
    return padded


def padding(gap: int) -> bytes:
    """The field `padding`, repeated where it must be, in exactly `gap` bytes; `gap` is not 1."""
    if not gap:
        return b""
    for head in range(2, 6):  # a tag of one byte, and a length of up to four
        length = _varint(gap - head)
        if 1 + len(length) == head:
            return TAG + length + bytes(gap - head)
    return TAG + _varint(0) + padding(gap - 2)  # no part is as long: its length would take one byte more


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(max(0, value))
    return bytes(encoded)
