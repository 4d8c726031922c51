"""One connection of a client of the API: requests that do not arrive, and answers that are not read, end it."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from http_api.failures import refusal
from opensled.core.errors import InvalidRequest
from opensled.net.address import bare_host
from opensled.net.old_connection import CONNECTION, Connection

PATIENCE = 30.0  # seconds for a request to arrive, from its first byte to its last
UNREAD = 60.0  # seconds for which a client may take nothing of an answer; chosen
FAREWELL = 3.0  # seconds for the last bytes of a closed connection to be taken; chosen
CLOSE = (b"connection", b"close")  # the header of an answer that ends its connection
PEER = "opensled.peer"  # in an ASGI scope: the `RemoteEnd` of its connection
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


# Two accounts of where a body ends (RFC 9112, 6.1): programs before this one may have read the other one, and what
# they take for the body of one client is then read as a request of another one (request smuggling).
TWO_ENDS = "a request has Content-Length or Transfer-Encoding, not both: send one of them"


class RemoteEnd(NamedTuple):
    """The other end of a connection."""

    host: str
    port: int
    certificate: bytes = b""  # PEM, verified; b"" = none


@dataclass(frozen=True)
class ConnectionLimits:
    """What a client may do with its connections."""

    patience: float = PATIENCE
    unread: float = UNREAD
    each: int = 0  # connections of one address at the same time; 0 = any number
    headers: int = 1 << 16  # bytes of a request before its body


class PatientProtocol(H11Protocol):
    """A connection whose requests must arrive, and whose answers must be read, within `limits`.

    uvicorn itself waits for ever: a client that sends a byte now and then would hold a connection (slowloris), and so
    would one that reads nothing. A late request ends with status 408.
    """

    def __init__(self, *, limits: ConnectionLimits, connected: Counter[str], **connection: Any) -> None:
        """`connected`: present connections by address, of all connections of one server."""
        super().__init__(**connection)
        self._limits, self._connected = limits, connected
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._host = ""
        self._leaving = False  # nothing is read of it any more
        self._own = Connection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host, port = self.client or ("", 0)
        self._host = host = bare_host(host)
        self.client = (host, port) if self.client else None
        self._connected[host] += 1
        if self._limits.each and self._connected[host] > self._limits.each:
            transport.write(TOO_MANY)
            self._close()
            return
        if not host:  # reset before it was accepted: an answer reaches no one, and no limit can count it
            self._leaving = True
            transport.abort()
            return
        peer = RemoteEnd(host, port, _certificate(transport))
        self.app = _known(self.app, self._own, peer, self._limits.headers)
        # Proxies and browsers connect before they have a request: until its first byte it idles
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        if self._leaving or self.transport.is_closing():
            return
        super().data_received(data)
        self._time()

    def _unsupported_upgrade_warning(self) -> None:
        """Java asks for HTTP/2 with each request, browsers behind some proxies for a WebSocket: both go on without."""

    def send_400_response(self, msg: str) -> None:
        """Where an answer to the request has begun, or is over, there is no place for another one."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self._close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:  # the next request had arrived meanwhile, perhaps in part
            self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unread is not None:
            self._unread.cancel()
        self._connected[self._host] -= 1
        if not self._connected[self._host]:
            del self._connected[self._host]
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        """Whether it parts, and the answer that closes it has not begun: until then its last request may be on its way,
        or be no sequence yet."""
        return self._own.is_old and not self._own.closes

    def part(self, seconds: int) -> None:
        """Take one more request, which must begin within `seconds` after the answer under way; its answer closes.

        Closing at once would lose a request that the client has sent already.
        """
        self._own.is_old, self.timeout_keep_alive = True, seconds
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.unread, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come: what the client has not read by then it shall read soon."""
        super().timeout_keep_alive_handler()
        self._close()

    def _time(self) -> None:
        """Let the timer run as long as a request is arriving; more bytes do not prolong it."""
        if self.cycle and not self.cycle.response_complete and not self.cycle.more_body:
            self._stop_timer()
        elif self._arriving is None and not self._leaving and not self.transport.is_closing():
            self._arriving = self.loop.call_later(self._limits.patience, self._give_up)

    def _stop_timer(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(TOO_LATE)
        self._close()

    def _close(self) -> None:
        """Close once the client has read everything, but soon.

        What it still sends is taken and thrown away: a socket that is closed on unread bytes resets the connection,
        and the client may lose its answer (RFC 9112, section 9.6).
        """
        self._leaving = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:  # TLS has its own farewell
            self.transport.close()
        self.loop.call_later(FAREWELL, self.transport.abort)


def _certificate(transport: asyncio.Transport) -> bytes:
    tls = transport.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True) if tls else None
    return ssl.DER_cert_to_PEM_cert(der).encode() if der else b""


def _known(app: Any, connection: Connection, peer: RemoteEnd, most: int) -> ASGIApp:
    """`app`, with the address and certificate of its client in each scope; a request with two ends or more than `most`
    bytes of headers goes no further, nor does anything that follows it on its connection."""

    async def serve(scope: Scope, receive: Receive, send_on: Send) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                connection.closes = CLOSE in message["headers"]
            await send_on(message)

        CONNECTION.set(connection)
        names = {name for name, _ in scope["headers"]}
        cause = TWO_ENDS if {b"content-length", b"transfer-encoding"} <= names else ""
        # h11 counts only those that arrive in pieces; 4: a colon, a space and the end of the line
        size = len(scope["raw_path"]) + len(scope["query_string"])
        if size + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > most:
            cause = f"the headers of a request have at most {most >> 10} KiB: send less of them"
        if cause:
            response = refusal(scope["path"], InvalidRequest(cause))
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        await app({**scope, PEER: peer}, receive, send)

    return serve
