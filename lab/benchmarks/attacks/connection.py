"""One HTTP/2 connection of an attacker: a bare socket that sends what it is told, as fast as flow control lets it."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from lab.benchmarks.attacks import frames
from opensled.wire import codec

METHOD = f"/{codec.SERVICE_NAME}/Sequence"
WINDOW = 1 << 20  # bytes of answers that a reading attacker lets the server send ahead
BUFFERED = 1 << 16  # bytes collected before a write
SILENCE_S = 5.0  # a socket that takes no byte for so long counts as lost

Running = Callable[[], bool]


class Lost(Exception):
    """The server, or the front before it, has ended the connection."""


@dataclass(frozen=True)
class Peer:
    """Where the server is, and who the attacker claims to be."""

    address: str  # HOST:PORT
    token: str
    source: str = ""  # the attacker's own IP address; "" = any
    tls_ca: Path | None = None  # PEM; None = no TLS

    def block(self, token: str | None = None) -> bytes:
        """The headers of a call, by default with the attacker's own token."""
        host, scheme = self.address.rpartition(":")[0], "https" if self.tls_ca else "http"
        return frames.header_block(METHOD, host, scheme, authorization=f"Bearer {token or self.token}")

    def connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        made = socket.create_connection(
            (host, int(port)), SILENCE_S, (self.source, 0) if self.source else None
        )
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.tls_ca:
            return made
        context = ssl.create_default_context(cafile=self.tls_ca)
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(made, server_hostname=host)


class Connection:
    """Streams of one connection. Every method may raise Lost or OSError."""

    def __init__(self, peer: Peer, running: Running, window: int = WINDOW) -> None:
        """`window`: bytes of each stream's answer that the server may send; below WINDOW no more are granted."""
        self._socket, self._running, self._reads = peer.connect(), running, window >= WINDOW
        self._block = peer.block()
        self._out, self._in = bytearray(), bytearray()
        self._room, self._first = frames.FIRST_WINDOW, frames.FIRST_WINDOW  # bytes that this end may send
        self._next = 1
        self.most = 1 << 31  # streams that the server takes at the same time, as far as it has said so
        self.open: dict[int, int] = {}  # streams that have not ended -> bytes that this end may send there
        self.heard: set[int] = set()  # open streams that a message of the server has reached
        self._out += frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: window})
        self._out += frames.window_update(0, WINDOW)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    # -- sending ----------------------------------------------------------------------------------------------

    def call(self, block: bytes | None = None) -> int:
        """Begin a stream with these headers, by default the attacker's own."""
        stream = self._next
        self._next += 2
        self.open[stream] = self._first
        self._add(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block or self._block))
        return stream

    def reset(self, stream: int) -> None:
        self._end(stream)
        self._add(frames.reset(stream))

    def send(self, stream: int, message: bytes) -> bool:
        """One gRPC message, as soon as the windows let it; False if the stream, or the attack, ends before."""
        rest = memoryview(frames.prefixed(message))
        while rest:
            size = min(len(rest), frames.MAX_PAYLOAD, self._room, self.open.get(stream, 0))
            if size <= 0:
                if stream not in self.open or not self._running():
                    return False
                self.pump(0.05)
                continue
            self._room -= size
            self.open[stream] -= size
            self._add(frames.frame(frames.DATA, 0, stream, bytes(rest[:size])))
            rest = rest[size:]
        return True

    def _add(self, data: bytes) -> None:
        self._out += data
        if len(self._out) >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        if self._out:
            self._socket.sendall(self._out)
            self._out.clear()

    # -- receiving --------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> bool:
        """Read until it holds; False if the attack ends, or so many seconds pass, before."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self._running() or time.monotonic() > deadline:
                return False
            self.pump(0.05)
        return True

    def wait_for_answer(self, stream: int) -> bool:
        """Read until the server has said something there, or ended it."""
        return self.wait(lambda: stream in self.heard or stream not in self.open)

    def wait_for_end(self, stream: int) -> bool:
        return self.wait(lambda: stream not in self.open)

    def rest(self, seconds: float) -> None:
        """Read for so long, or until the attack ends."""
        self.wait(lambda: False, seconds)

    def lacks(self, count: int) -> int:
        """How many streams may be opened until there are `count`, or as many as the server takes."""
        return max(0, min(count, self.most) - len(self.open))

    def pump(self, seconds: float = 0.0) -> None:
        """Send what is collected, and take in what arrives within so many seconds."""
        self.flush()
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not pending and not select.select([self._socket], [], [], seconds)[0]:
            return
        news = self._socket.recv(1 << 18)
        if not news:
            raise Lost
        self._in += news
        for kind, flags, stream, payload in self._frames():
            self._take(kind, flags, stream, payload)

    def _frames(self) -> Iterable[tuple[int, int, int, bytes]]:
        at = 0
        while len(self._in) >= at + frames.HEAD:
            size = int.from_bytes(self._in[at : at + 3], "big")
            end = at + frames.HEAD + size
            if len(self._in) < end:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._in, at + 3)
            yield kind, flags, stream, bytes(self._in[at + frames.HEAD : end])
            at = end
        del self._in[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.WINDOW_UPDATE:
            self._more(stream, int.from_bytes(payload, "big"))
        elif kind == frames.PING and not flags & frames.ACK:
            self._add(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY:
            raise Lost
        elif kind == frames.DATA:
            self._heard(stream, len(payload))
        if kind == frames.RST_STREAM or (kind in (frames.DATA, frames.HEADERS) and flags & frames.END_STREAM):
            self._end(stream)

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                self.open = {stream: room + value - self._first for stream, room in self.open.items()}
                self._first = value
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self.most = value
        self._add(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))

    def _more(self, stream: int, more: int) -> None:
        if not stream:
            self._room += more
        elif stream in self.open:
            self.open[stream] += more

    def _heard(self, stream: int, size: int) -> None:
        if size and stream in self.open:
            self.heard.add(stream)
        if size and self._reads:
            self._add(frames.window_update(0, size) + frames.window_update(stream, size))

    def _end(self, stream: int) -> None:
        self.open.pop(stream, None)
        self.heard.discard(stream)
