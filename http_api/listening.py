"""Where the API listens, and what people are told of it."""

import contextlib
import socket

from opensled.core.errors import OpenSledError
from opensled.net.address import families, host_port, join_host_port, listener
from opensled.net.own_addresses import best_host
from opensled.process.logs import tell

SEND_BYTES = 64 << 10  # of an answer that the system keeps for a slow reader; chosen: seconds of text


def listen_everywhere(address: str) -> list[socket.socket]:
    """Listeners at all addresses of the host of --http: browsers take ::1 for localhost, other programs 127.0.0.1.
    Raises OpenSledError if the first one is taken."""
    host, listening = host_port(address)[0], [listen(address)]
    port = listening[0].getsockname()[1]
    for family in families(host)[1:]:
        with contextlib.suppress(OSError):  # the system has no such addresses
            listening.append(_prepared(socket.create_server((host, port), family=family)))
    return listening


def listen(address: str) -> socket.socket:
    """A listener at the address of --http; raises OpenSledError if it is taken."""
    try:
        return _prepared(listener(address))
    except OSError as error:
        raise OpenSledError(f"cannot listen on {address}: {error.strerror}; choose another --http") from error


def _prepared(listening: socket.socket) -> socket.socket:
    # Connections inherit it. With Nagle's algorithm the second chunk of a stream waits 40 ms for an acknowledgement;
    # asyncio turns it off only on sockets created with an explicit protocol.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client that reads nothing would have answers of megabytes computed ahead, into buffers of the system.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    return listening


def tell_api(address: str, tls: bool, model_id: str) -> None:
    """How clients reach the API, and which model they name ("" = not known yet)."""
    base = f"{'https' if tls else 'http'}://{join_host_port(best_host(address), host_port(address)[1])}"
    named = f" with model {model_id!r}" if model_id else ""
    tell(f"OpenAI API: {base}/v1{named}; described at {base}/openapi.json")
    tell(f"page for a browser: {base}/")
