"""A peer that says what no client of ours would say: raw bytes as gRPC messages, and half of one on a bare socket."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence

import grpc

from opensled import codec
from opensled.messages import Failure, Opened, ServerMessage, Verdict
from opensled.v1 import verify_pb2 as pb

METHOD = f"/{codec.SERVICE_NAME}/Sequence"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_HEADERS = 4


class RawStream:
    """One call of `Sequence` whose messages are bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(METHOD)()

    async def send(self, *frames: bytes) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # the answer says why
            for frame in frames:
                await self._call.write(frame)

    async def half_close(self) -> None:
        await self._call.done_writing()

    async def receive(self) -> ServerMessage | str:
        """The next message, or the name of the status that ended the call."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            message = await asyncio.wait_for(self._call.read(), 10)
            if message is not grpc.aio.EOF:
                return codec.decode_server(pb.ServerMessage.FromString(message))
        return (await self._call.code()).name

    async def outcome(self, committed: Sequence[int] = ()) -> tuple[Failure | str, list[int]]:
        """How it ends: a Failure, a finish reason or the name of a status; and the truth as its verdicts tell it."""
        tokens: list[int] = []
        while True:
            message = await self.receive()
            if isinstance(message, (Failure, str)):
                return message, tokens
            if isinstance(message, Opened):
                tokens += (*message.prompt_ids, *committed)
            if isinstance(message, Verdict):
                known = tokens[message.base :]
                assert known == list(message.tokens[: len(known)]), "two accounts of one position"
                tokens += message.tokens[len(known) :]
            if isinstance(message, Verdict) and message.finish_reason:
                return message.finish_reason, tokens

    def vanish(self) -> None:
        self._call.cancel()


@contextlib.asynccontextmanager
async def raw_stream(address: str):
    async with grpc.aio.insecure_channel(address) as channel:
        stream = RawStream(channel)
        yield stream
        stream.vanish()


@contextlib.asynccontextmanager
async def half_a_message(address: str, *whole: bytes):
    """Send whole messages over plain HTTP/2, then the head and the first byte of one more; then the line is cut."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    headers = {
        ":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": host,
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    block = b"".join(b"\0" + _string(name) + _string(value) for name, value in headers.items())
    writer.write(PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_HEADERS, 1, block))
    for message in whole:
        writer.write(_frame(DATA, 0, 1, _prefixed(message, len(message))))
    writer.write(_frame(DATA, 0, 1, _prefixed(b"\x0a", 1000)))
    await writer.drain()
    await reader.read(1)  # the server is there
    yield
    writer.transport.abort()


def _string(text: str) -> bytes:
    """HPACK string literal without Huffman coding (RFC 7541, 5.2); shorter than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _prefixed(message: bytes, length: int) -> bytes:
    """gRPC's prefix: not compressed, and how many bytes the message has (or claims to have)."""
    return struct.pack(">BI", 0, length) + message
