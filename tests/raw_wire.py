"""A peer that says what no client of ours would say: raw bytes as gRPC messages, and half of one on a bare socket."""

import asyncio
import contextlib
import struct
from collections.abc import Sequence

import grpc

from opensled.core.messages import Failure, Opened, ServerMessage, Verdict
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec

METHOD = f"/{codec.SERVICE_NAME}/Sequence"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
ACK, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4  # a setting
CANCEL = 8  # an error code


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
            message = await asyncio.wait_for(self._call.read(), 20)
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


class RawConnection:
    """One HTTP/2 connection, by hand: it may leave what it gets unread, and reset what it has begun."""

    def __init__(self, address: str, window: int, token: str) -> None:
        self._address, self._window, self._token = address, window, token
        self.greeted, self.closed = asyncio.Event(), asyncio.Event()  # by the server
        self.ended: set[int] = set()  # streams that the server has ended
        self._next = 1

    async def connect(self) -> None:
        host, port = self._address.split(":")
        self._reader, self.writer = await asyncio.open_connection(host, int(port))
        self.writer.write(
            PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, self._window))
        )
        self._reading = asyncio.ensure_future(self._read())

    def call(self, *messages: bytes) -> int:
        """Begin a call of `Sequence` with these messages; its stream's number."""
        headers = {
            ":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "localhost",
            "content-type": "application/grpc", "te": "trailers", "authorization": f"Bearer {self._token}",
        }  # fmt: skip
        block = b"".join(b"\0" + _string(name) + _string(value) for name, value in headers.items())
        number, self._next = self._next, self._next + 2
        self.writer.write(_frame(HEADERS, END_HEADERS, number, block))
        self.send(number, *messages)
        return number

    def send(self, number: int, *messages: bytes) -> None:
        for message in messages:
            self.writer.write(_frame(DATA, 0, number, _prefixed(message, len(message))))

    def begin_message(self, number: int) -> None:
        """The head and the first byte of a message."""
        self.writer.write(_frame(DATA, 0, number, _prefixed(b"\x0a", 1000)))

    def reset(self, number: int) -> None:
        self.writer.write(_frame(RST_STREAM, 0, number, struct.pack(">I", CANCEL)))

    async def cut(self) -> None:
        self._reading.cancel()
        self.writer.transport.abort()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(9)
                kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self.greeted.set()
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self.writer.write(_frame(kind, ACK, 0, payload if kind == PING else b""))
                if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    self.ended.add(number)
        self.closed.set()


@contextlib.asynccontextmanager
async def raw_connection(address: str, window: int = 65535, token: str = ""):
    """`window`: bytes of each stream that are taken before the server must stop."""
    connection = RawConnection(address, window, token)
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.cut()


@contextlib.asynccontextmanager
async def half_a_message(address: str, *whole: bytes):
    """Send whole messages over plain HTTP/2, then the head and the first byte of one more; then the line is cut."""
    async with raw_connection(address) as connection:
        connection.begin_message(connection.call(*whole))
        await connection.greeted.wait()
        yield


def _string(text: str) -> bytes:
    """HPACK string literal without Huffman coding (RFC 7541, 5.2); shorter than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _prefixed(message: bytes, length: int) -> bytes:
    """gRPC's prefix: not compressed, and how many bytes the message has (or claims to have)."""
    return struct.pack(">BI", 0, length) + message
