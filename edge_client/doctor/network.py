"""Checks the connection to the server step by step: name, TCP, TLS, HTTP/2.

gRPC reports only that it cannot connect. These steps show which one fails.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Literal

from edge_client.doctor.finding import Finding, fail, in_thread, ok, plain
from opensled.core.errors import Unreachable
from opensled.net.address import join_host_port

SECONDS = 3.0  # for one step
# What an HTTP/2 client sends first (RFC 9113, 3.4): the preface and empty settings. The server answers with its own.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
SETTINGS = 4  # the type of that frame, its fourth byte

Greeting = Literal["http2", "closed", "silent", "tls", "web", "garbage"]


@dataclass(frozen=True)
class Peer:
    """A server that accepts TCP connections."""

    host: str  # as the user wrote it: what its certificate must name
    address: str  # the IP address that accepted
    port: int


async def check_name(host: str, port: int) -> tuple[Finding, list[str]]:
    """The finding, and the IP addresses of `host`."""
    try:
        work = in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        found = await asyncio.wait_for(work, SECONDS)
    except asyncio.TimeoutError:
        cause = f"no name server answers within {SECONDS:g} s"
    except (OSError, UnicodeError) as error:
        cause = getattr(error, "strerror", "") or str(error)
    else:
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        return ok("name", f"{host} is {', '.join(addresses[:4])}"), addresses
    fix = f"check the spelling and the network: getent hosts {host}; or give the IP address with --server"
    return fail("name", f"{host} has no address: {cause}", fix, Unreachable), []


async def check_connection(host: str, addresses: list[str], port: int) -> tuple[Finding, Peer | None]:
    """Try all addresses at once; one that accepts is enough."""
    outcomes = await asyncio.gather(*(_connects(address, port) for address in addresses))
    good = [address for address, problem in zip(addresses, outcomes) if not problem]
    if good:
        return ok("connection", f"{good[0]} port {port} accepts connections"), Peer(host, good[0], port)
    problems = "; ".join(f"{address}: {problem}" for address, problem in zip(addresses, outcomes))
    refused = all("refused" in problem for problem in outcomes)
    fix = (
        f"start the server: opensled serve --listen {join_host_port(host, port)}; or correct the port of --server"
        if refused
        else "see that the server is on, in the same network, and that no firewall drops the port"
    )
    return fail("connection", f"port {port} does not accept: {problems}", fix, Unreachable), None


async def _connects(address: str, port: int) -> str:
    """The problem, "" if there is none."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), SECONDS)
    except asyncio.TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    writer.close()
    return ""


async def greet(peer: Peer, context: ssl.SSLContext | None) -> tuple[Greeting, str]:
    """Connect, send the HTTP/2 preface, and classify the reply; and until when a trusted certificate is valid.

    Raises OSError, and with `context` ssl.SSLError.
    """
    name = peer.host if context else None
    opening = asyncio.open_connection(peer.address, peer.port, ssl=context, server_hostname=name)
    reader, writer = await asyncio.wait_for(opening, SECONDS)
    ends = (writer.get_extra_info("peercert") or {}).get("notAfter", "")
    try:
        writer.write(PREFACE)
        await writer.drain()
        return _recognise(await asyncio.wait_for(reader.read(64), SECONDS)), ends
    except asyncio.TimeoutError:
        return "silent", ends
    except ConnectionError:
        return "closed", ends
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 0.5)


def _recognise(answer: bytes) -> Greeting:
    if not answer:
        return "closed"
    if answer.startswith(b"\x15\x03"):  # a TLS record of type alert
        return "tls"
    if answer.startswith(b"HTTP/"):
        return "web"
    return "http2" if len(answer) >= 9 and answer[3] == SETTINGS else "garbage"


async def check_plain(peer: Peer) -> Finding:
    """Whether the server answers without TLS."""
    try:
        greeting, _ = await greet(peer, None)
    except (OSError, asyncio.TimeoutError) as error:
        return fail("protocol", f"the connection broke: {error}", "try again", Unreachable)
    if greeting in ("closed", "tls", "garbage") and await speaks_tls(peer):
        return fail(
            "protocol",
            "the server wants TLS, and none is configured",
            "--tls, or --tls-ca FILE with the certificate the server's owner gave you",
            Unreachable,
        )
    return report_greeting(greeting)


async def speaks_tls(peer: Peer) -> bool:
    """Whether a TLS handshake works; no certificate is trusted by it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await greet(peer, context)
        return True
    return False


_MEANINGS: dict[Greeting, tuple[str, str]] = {
    "closed": ("it ends the connection at once", "see the server's log; is it an OpenSLED server?"),
    "silent": ("it accepts, and then says nothing", "see the server's log; is it an OpenSLED server?"),
    "tls": ("it refuses our TLS", "see the server's log"),
    "web": (
        "a web server answers there, not a verification server",
        "--server takes the port of `opensled serve` (7411), not the API of `opensled edge` (8411)",
    ),
    "garbage": ("it answers something that is not gRPC", "correct the port of --server"),
}


def report_greeting(greeting: Greeting) -> Finding:
    """What a greeting means for gRPC."""
    if greeting == "http2":
        return ok("protocol", "HTTP/2 answers, as gRPC needs")
    meaning, fix = _MEANINGS[greeting]
    return fail("protocol", plain(meaning), fix, Unreachable)
