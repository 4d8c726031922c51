"""Addresses, and which of them leave this machine."""

import ipaddress
import re
import socket
from contextlib import suppress

from opensled.core.errors import UsageError

# What `--cors-origin` takes: apps and extensions have schemes of their own, pages of Electron and Android a bare one
ORIGIN = re.compile(
    r"https?://(?:\*\.)?(?:[^\s/?#@*:\[\]]+|\[[0-9a-f:.]+\])(?::(?:\d+|\*))?"
    r"|file://|(?!https?:|file:)[a-z][a-z0-9+.-]*://(?:\*|[^\s/?#@*]+)"
)
NO_ORIGIN = re.compile(r"null|\*|https?://\*(?::.*)?")
STRANGERS = (
    "pages of any site would be; serve your page at an address, such as http://localhost:8000, and allow that"
)
# Ends of names that only a network itself gives: no registry hands them out, and routers and tailnets do
NEAR_NAMES = (
    ".localhost", ".local", ".lan", ".home", ".home.arpa", ".internal", ".intranet", ".localdomain", ".fritz.box",
    ".speedport.ip", ".corp", ".ts.net",
)  # fmt: skip
IPV6_PREFIX = 64  # bits: one customer of a provider has that many addresses
MDNS = "mdns"  # in place of an address: the server that is announced on this network


def host_port(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[IPv6]:port"; port 0 = any free one."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[^\s/@]+", host) or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise UsageError(f"{address!r} is not an address; write HOST:PORT, such as 127.0.0.1:7411")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listener(address: str) -> socket.socket:
    """A socket that listens at HOST:PORT; at [::] over IPv4, too, as gRPC's do. Raises OSError."""
    host, port = host_port(address)
    family = families(host)[0]
    both = family is socket.AF_INET6 and is_wildcard(address) and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, dualstack_ipv6=both)


def families(host: str) -> list[socket.AddressFamily]:
    """The kinds of addresses that a host has, IPv4 first: what is told of a listener works in every client then."""
    found = {
        socket.AddressFamily(each[0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    }
    return sorted(found, key=lambda family: family is not socket.AF_INET)


def bare_host(host: str) -> str:
    """The host at the other end of a connection; one that came over IPv4 to a socket for both has no prefix."""
    return host.removeprefix("::ffff:") if "." in host else host


def client_network(host: str) -> str:
    """What counts as one client's address: an IPv4 address, or the network of an IPv6 address, as one customer of a
    provider has that many. An interface does not count."""
    address = ipaddress.ip_address(bare_host(host.partition("%")[0]))
    return str(
        address if address.version == 4 else ipaddress.ip_network((address, IPV6_PREFIX), strict=False)
    )


def join_host_port(host: str, port: int) -> str:
    """The address of both, as `host_port` reads it: an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def web_origins(listed: str) -> tuple[str, ...]:
    """The origins in a comma-separated list, as browsers write them: scheme://host[:port] in lower case. A `*` stands
    for any port, for the first names of a host, or for all of a host that is none of the web's.

    What people paste with it is left out: a path, a slash, the port that the scheme implies. Raises UsageError.
    """
    return tuple(map(_web_origin, listed.split(","))) if listed else ()


def _web_origin(written: str) -> str:
    origin = "/".join(written.strip().lower().split("/")[:3])
    if NO_ORIGIN.fullmatch(origin):
        raise UsageError(f"{written.strip()!r} cannot be allowed: {STRANGERS}")
    if not ORIGIN.fullmatch(origin):
        raise UsageError(
            f"{written.strip()!r} is not an origin; write SCHEME://HOST[:PORT], such as https://chat.example"
        )
    return _without_usual_port(origin)


def _without_usual_port(origin: str) -> str:
    return re.sub(r"(?<=^http:)(.+):80$|(?<=^https:)(.+):443$", r"\1\2", origin)


def is_allowed_origin(origin: str, allowed: tuple[str, ...]) -> bool:
    """Whether a page's `Origin` is one of those that `web_origins` gave."""
    return re.fullmatch(origins_pattern(allowed), _without_usual_port(origin.lower())) is not None


def origins_pattern(allowed: tuple[str, ...]) -> str:
    """A regular expression of these origins; of no text at all where there are none."""
    each = (
        re.escape(origin).replace(r":\*", r"(?::\d+)?").replace(r"\*", r"[a-z0-9_.-]+") for origin in allowed
    )
    return f"(?i:{'|'.join(each)})" if allowed else "(?!)"


def is_local(address: str) -> bool:
    """Whether only this machine can reach a listener at "host:port"."""
    return is_loopback(host_port(address)[0])


def is_wildcard(address: str) -> bool:
    """Whether a listener at "host:port" listens on every interface, so that no client can connect to that host."""
    found = as_ip(host_port(address)[0])
    return found is not None and found.is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    found = as_ip(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def leads_here(host: str) -> bool:
    """Whether a connection to `host` ends at this machine, in any spelling that the system's resolver reads."""
    name = host.lower().rstrip(".")
    with suppress(OSError):
        name = socket.inet_ntoa(socket.inet_aton(name))  # also 0x7f.1
    found = as_ip(name)
    found = getattr(found, "ipv4_mapped", None) or found
    if found is None:
        return f".{name}".endswith((".localhost", ".ip6-localhost", ".localhost.localdomain"))
    return found.is_loopback or found.is_unspecified  # Linux takes 0.0.0.0 for loopback


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
    is_own = bool(own) and host.partition(".")[0] == own and f".{host}".endswith((f".{own}", *NEAR_NAMES))
    return as_ip(host) is not None or is_loopback(host) or is_own


def without_final_dot(host_header: str) -> str:
    """A `Host` header without the dot that ends a whole name (RFC 1034, 3.1)."""
    return re.sub(r"\.(?=(?::\d*)?$)", "", host_header)


def _header_host(host_header: str) -> str:
    """The host in a `Host` header, in lower case, without its final dot; "" for anything that is none."""
    found = re.fullmatch(
        r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{0,5})?",
        without_final_dot(host_header.lower()),
        re.ASCII,
    )
    return (found[1] or found[2]) if found else ""


def as_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is; None = it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
