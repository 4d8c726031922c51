"""Who serves on this network: announcements by multicast DNS (RFC 6762, 6763).

An announcement is worth an address and no more: anybody on the network can announce anything. Who answers there has to
show a certificate, or that it knows the pairing code.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from opensled.core.errors import NotFound, UsageError
from opensled.core.printable import visible_line
from opensled.net.address import as_ip, is_local, is_wildcard, join_host_port
from opensled.net.own_addresses import best_host, network_addresses

SERVING = "_opensled._tcp.local."
PAIRING = "_opensled-pair._tcp.local."
COMMANDS = {SERVING: "opensled serve --announce", PAIRING: "opensled pair --announce"}

LISTEN_SECONDS = 2.0  # for which announcements are collected; RFC 6762 lets answers take half a second
ANSWER_SECONDS = 1.0  # to be told the address behind a name
REACH_SECONDS = 2.0  # for one address to accept a connection, and to prove what it is
MAX_RECORDS = 16  # names that are looked at; more are left out
MAX_ADDRESSES = 8  # of one name that are tried
MAX_NAME = 63  # characters of a name that are shown


class FoundServer(NamedTuple):
    """One announcement: what it calls itself, and where it says it is; none of it is proven."""

    name: str
    addresses: tuple[str, ...]  # of the local network
    port: int


@asynccontextmanager
async def announce(kind: str, listen: str, port: int) -> AsyncIterator[None]:
    """While inside, a listener at `listen` and `port` is announced.

    Raises UsageError if no other machine can reach it.
    """
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    require_reachable(listen)
    addresses = network_addresses() if is_wildcard(listen) else [best_host(listen)]
    name = _label(socket.gethostname())
    info = AsyncServiceInfo(
        kind,
        f"{name}.{kind}",
        port,
        server=f"{name}.local.",
        parsed_addresses=addresses,
        properties={"version": "1"},
    )
    responder = AsyncZeroconf()
    try:
        await responder.async_register_service(info, allow_name_change=True)
        yield
        await responder.async_unregister_all_services()
    finally:
        await responder.async_close()


def require_reachable(listen: str) -> None:
    """Raises UsageError for a listener that only this machine reaches."""
    if is_local(listen):
        raise UsageError(
            f"--announce: only this machine can reach {listen}; listen on 0.0.0.0, or leave out --announce"
        )


def _label(host: str) -> str:
    """A host's name as one label of DNS."""
    plain = "".join(sign if sign.isalnum() and sign.isascii() else "-" for sign in host.split(".")[0])
    return plain.strip("-")[:40] or "opensled"


def find(kind: str, tls: ssl.SSLContext | None = None, name: str = "") -> str:
    """HOST:PORT of the only announced listener of a kind; blocks for some seconds, outside of an event loop.

    With `tls` a listener counts only if it shows a certificate for `name` ("" = its address) that `tls` trusts, so
    that announcements of other machines do not stand in its way. Raises NotFound for none, and UsageError for several:
    which one is meant is for the user to say.
    """
    found = asyncio.run(_find_all(kind, tls, name))
    reached = [(each.name, address) for each, address in found if address]
    if len(reached) == 1:
        return reached[0][1]
    if reached:
        listed = ", ".join(f"{name} at {address}" for name, address in sorted(reached))
        raise UsageError(f"several are announced on this network: {listed}; name one by its address")
    lacks = "cannot be reached" + (", or cannot prove to be this device's server" if tls else "")
    silent = f" ({', '.join(each.name for each, _ in found)} {lacks})" if found else ""
    raise NotFound(
        f"no server announced itself on this network within {LISTEN_SECONDS:g} s{silent}; start {COMMANDS[kind]}, "
        "or give the address"
    )


async def _find_all(kind: str, tls: ssl.SSLContext | None, name: str) -> list[tuple[FoundServer, str]]:
    """All announcements of a kind, each with the address that accepted a connection, "" = none."""
    found = await listen_for(kind)
    return list(zip(found, await asyncio.gather(*(_reach(each, tls, name) for each in found))))


async def listen_for(kind: str, seconds: float = LISTEN_SECONDS) -> list[FoundServer]:
    """What is announced, checked; at most MAX_RECORDS."""
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    names: dict[str, None] = {}

    def add_name(zeroconf: object, service_type: str, name: str, state_change: object) -> None:
        if len(names) < MAX_RECORDS:
            names.setdefault(name)

    listener = AsyncZeroconf()
    try:
        browser = AsyncServiceBrowser(listener.zeroconf, [kind], handlers=[add_name])
        await asyncio.sleep(seconds)
        await browser.async_cancel()
        infos = [AsyncServiceInfo(kind, name) for name in names]
        asked = [info.async_request(listener.zeroconf, 1000 * ANSWER_SECONDS) for info in infos]
        answered = await asyncio.gather(*asked, return_exceptions=True)
        told = [info for info, answer in zip(infos, answered) if answer is True]
        found = [check_record(kind, info.name, info.parsed_addresses(), info.port) for info in told]
    finally:
        await listener.async_close()
    return [each for each in found if each is not None]


def check_record(kind: str, name: str, addresses: Iterable[str], port: int | None) -> FoundServer | None:
    """A record as far as it can be believed: a name that can be shown, and addresses of a local network; else None.

    No record leads a device out of its network, to a broadcast address, or to a port of its own.
    """
    own = name.removesuffix(f".{kind}")
    usable = [address for address in addresses if _is_nearby(address)][:MAX_ADDRESSES]
    if not (usable and own and isinstance(port, int) and 0 < port < 65536):
        return None
    shown = "".join(sign if sign.isprintable() else "?" for sign in visible_line(own[:MAX_NAME]))
    return FoundServer(shown, tuple(sorted(usable, key=lambda address: ":" in address)), port)


def _is_nearby(address: str) -> bool:
    known = as_ip(address)
    if known is None:
        return False
    is_cable = known.version == 4 and not address.startswith("169.254.169.")  # which clouds answer at
    nowhere = known.is_unspecified or known.is_multicast or known.is_loopback or address == "255.255.255.255"
    return known.is_private and not nowhere and (is_cable or not known.is_link_local)


async def _reach(found: FoundServer, tls: ssl.SSLContext | None, name: str) -> str:
    """The first of its addresses, IPv4 before IPv6, that accepts a connection, as HOST:PORT; "" for none."""
    accepting = (_accepts(address, found.port, tls, name) for address in found.addresses)
    accepted = await asyncio.gather(*accepting)
    reached = [address for address, accepts in zip(found.addresses, accepted) if accepts]
    return join_host_port(reached[0], found.port) if reached else ""


async def _accepts(address: str, port: int, tls: ssl.SSLContext | None, name: str) -> bool:
    host = (name or address) if tls else None
    connecting = asyncio.open_connection(address, port, ssl=tls, server_hostname=host)
    try:
        _, writer = await asyncio.wait_for(connecting, REACH_SECONDS)
    except (OSError, asyncio.TimeoutError):  # an ssl.SSLError is an OSError
        return False
    writer.close()
    return True
