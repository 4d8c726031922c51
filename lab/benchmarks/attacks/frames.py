"""HTTP/2 frames and gRPC messages as bytes, for peers that do what no client library does."""

import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4  # settings
HEAD = 9  # bytes before a frame's payload
FIRST_WINDOW = 65_535  # bytes that either end may send before the other one says more (RFC 9113, 6.9.2)
MAX_PAYLOAD = 16_384  # bytes of a frame that every peer takes
CANCEL = 8  # an error code


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in values.items()))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def header_block(method: str, host: str, scheme: str = "http", **more: str) -> bytes:
    """The headers of a gRPC call; it leaves both ends' HPACK tables as they are, so that any stream can have it."""
    headers = {
        ":method": "POST", ":scheme": scheme, ":path": method, ":authority": host,
        "content-type": "application/grpc", "te": "trailers", **more,
    }  # fmt: skip
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers.items())


def _string(text: str) -> bytes:
    """HPACK string literal without Huffman coding (RFC 7541, 5.2); shorter than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def prefixed(message: bytes, length: int | None = None) -> bytes:
    """gRPC's prefix: not compressed, and how many bytes the message has (or claims to have)."""
    return struct.pack(">BI", 0, len(message) if length is None else length) + message
