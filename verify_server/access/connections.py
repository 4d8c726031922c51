"""Connections as gRPC names them: their addresses, and how to end one, which grpcio has no call for."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from pathlib import Path
from urllib.parse import quote, unquote

from opensled.net.address import client_network, host_port

log = logging.getLogger(__name__)

DESCRIPTORS = "/dev/fd"  # the open ones of this process, on Linux and macOS
TOGETHER_S = 0.05  # for which connections are collected before the descriptors are looked through; chosen

Peer = tuple[str, int]  # address and port


def peer_of(name: str) -> Peer | None:
    """Address and port of `ipv4:192.0.2.1:4711` or `ipv6:%5B2001:db8::1%5D:4711`; None of a socket with a path."""
    family, _, rest = unquote(name).partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    host, port = host_port(rest)
    return _plain(host), port


def peer_name(host: str, port: int) -> str:
    """The name that gRPC would give to the peer at this address."""
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}"


def address_of(name: str) -> str:
    """What counts as one client's address, see `client_network`; of a socket with a path its name."""
    peer = peer_of(name)
    return client_network(peer[0]) if peer else name


def _plain(host: str) -> str:
    """The one form of an address; IPv4 within IPv6 is IPv4, and an interface does not count."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if address.version == 6 else None
    return str(mapped or address)


class ConnectionCloser:
    """Ends connections of this process by their peers' names."""

    def __init__(self) -> None:
        self._peers: set[Peer] = set()

    def close(self, name: str) -> None:
        """End the connection to a peer soon, with all its streams."""
        peer = peer_of(name)
        if peer is None:
            return
        if not self._peers:
            asyncio.get_running_loop().call_later(TOGETHER_S, self._close_all)
        self._peers.add(peer)

    def _close_all(self) -> None:
        peers, self._peers = self._peers, set()
        log.info("closing connections of clients beyond their limits: %d", len(peers))
        for number in _descriptors():
            with contextlib.suppress(OSError, ValueError), _duplicate(number) as one:
                if _peer(one) in peers:
                    one.shutdown(socket.SHUT_RDWR)


def _descriptors() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path(DESCRIPTORS).iterdir()]
    return []


def _duplicate(number: int) -> socket.socket:
    """A second descriptor of a socket: gRPC may close its own meanwhile. Raises OSError for what is no socket."""
    own = os.dup(number)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _peer(connection: socket.socket) -> Peer:
    """Raises OSError or ValueError for what is no TCP connection."""
    host, port, *_ = connection.getpeername()
    return _plain(host), port
