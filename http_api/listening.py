"""Where the API listens, and what people are told of it."""

import os
import socket

from opensled.core.errors import OpenSledError
from opensled.net.address import host_port
from opensled.process.logs import tell

SEND_BYTES = 64 << 10  # of an answer that the system keeps for a slow reader; chosen: seconds of text


def listen(address: str) -> socket.socket:
    """A listener at the address of --http; raises OpenSledError if it is taken."""
    host, port = host_port(address)
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise OpenSledError(
            f"cannot listen on {address}: {os.strerror(error.errno or 0)}; choose another --http"
        ) from error
    # Connections inherit it. With Nagle's algorithm the second chunk of a stream waits 40 ms for an acknowledgement;
    # asyncio turns it off only on sockets created with an explicit protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client that reads nothing would have answers of megabytes computed ahead, into buffers of the system.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    return listener


def tell_api(address: str, tls: bool, model_id: str) -> None:
    """How clients reach the API, and which model they name ("" = not known yet)."""
    base = f"{'https' if tls else 'http'}://{address}"
    named = f" with model {model_id!r}" if model_id else ""
    tell(f"OpenAI API: {base}/v1{named}; described at {base}/openapi.json")
    tell(f"page for a browser: {base}/")
