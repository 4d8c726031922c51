"""Checks the addresses of `Moved`: a device follows only those that are safe."""

import re

from opensled.core.errors import ProtocolError, UsageError
from opensled.net.address import as_ip, host_port, join_host_port, leads_here

MAX_MOVES = 4  # in a row, before the sequence is open somewhere

_NAME = re.compile(r"(?=.*[a-z])[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_.])?", re.IGNORECASE)  # has a letter


def destination(address: str, home: str, *, secret_in_clear: bool) -> str:
    """`address` as HOST:PORT, to which the server at `home` sends this device; "" for `home` itself.

    Raises ProtocolError for text that is no address, for a port of this machine unless `home` is on it, and for another
    host if the bearer token would travel there in clear text (`secret_in_clear`).
    """
    host, port = _read(address, home)
    own = host_port(home)
    if (host, port) == own:
        return ""
    if leads_here(host) and not leads_here(own[0]):
        raise ProtocolError(
            f"{home} sends this device to {address}, an address of this machine itself, which is refused; name "
            "another --listen at the gateway"
        )
    if secret_in_clear and host.lower() != own[0].lower():
        raise ProtocolError(
            f"{home} sends this device to {address}, where its bearer token would travel in clear text: connect with "
            "--tls or --tls-ca, or serve with --proxy"
        )
    return join_host_port(host, port)


def _read(address: str, home: str) -> tuple[str, int]:
    """A name or a literal address, and a port; gRPC itself also accepts other forms, such as the path of a socket."""
    try:
        host, port = host_port(address)
    except UsageError:
        host, port = "", 0
    if not port or not (as_ip(host) or _NAME.fullmatch(host)):
        raise ProtocolError(f"{home} sends this device to {address[:80]!r}, which is not HOST:PORT")
    return host, port
