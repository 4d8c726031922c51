"""Addresses, and which of them leave this machine."""

from __future__ import annotations

import ipaddress

from opensled.errors import UsageError


def host_port(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[IPv6]:port"; port 0 = any free one."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{address!r} is not an address; write HOST:PORT, such as 127.0.0.1:7411")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
