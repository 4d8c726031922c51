"""Addresses, and which of them leave this machine."""

import ipaddress
import re
import socket

from opensled.core.errors import UsageError

MDNS = "mdns"  # in place of an address: the server that is announced on this network


def host_port(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[IPv6]:port"; port 0 = any free one."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[^\s/@]+", host) or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{address!r} is not an address; write HOST:PORT, such as 127.0.0.1:7411")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_host_port(host: str, port: int) -> str:
    """The address of both, as `host_port` reads it: an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def web_origins(listed: str) -> tuple[str, ...]:
    """The origins in a comma-separated list, as browsers write them: scheme://host[:port] in lower case."""
    origins = tuple(origin.strip() for origin in listed.split(",")) if listed else ()
    for origin in origins:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@*A-Z]+", origin):
            raise UsageError(
                f"{origin!r} is not an origin; write SCHEME://HOST[:PORT], such as https://chat.example"
            )
    return origins


def is_local(address: str) -> bool:
    """Whether only this machine can reach a listener at "host:port"."""
    return is_loopback(host_port(address)[0])


def is_wildcard(address: str) -> bool:
    """Whether a listener at "host:port" listens on every interface, so that no client can connect to that host."""
    try:
        return ipaddress.ip_address(host_port(address)[0]).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def calls_loopback(host_header: str) -> bool:
    """Whether an HTTP `Host` header ("name", "name:port", "[IPv6]:port") names this machine.

    Strict (RFC 9110, 7.2): a header with anything else in it, such as user information, is refused.
    """
    return is_loopback(_header_host(host_header))


def names_own_machine(host_header: str) -> bool:
    """Whether an HTTP `Host` header is an IP address or a name of this machine.

    The page at such a name came from here: a stranger owns neither, so that he cannot point one of them at this machine
    later (DNS rebinding).
    """
    host, own = _header_host(host_header), socket.gethostname().lower().partition(".")[0]
    return _is_ip(host) or is_loopback(host) or (bool(own) and host in (own, f"{own}.local"))


def _header_host(host_header: str) -> str:
    """The host in a `Host` header, in lower case; "" for anything that is none."""
    found = re.fullmatch(
        r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]{0,5})?", host_header.lower(), re.ASCII
    )
    return (found[1] or found[2]) if found else ""


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
