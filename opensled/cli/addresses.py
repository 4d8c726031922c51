"""Options that name an address: one grammar for all. A host or a port alone is enough."""

from __future__ import annotations

from functools import partial
from typing import Any

from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.net.address import MDNS, host_port

HOME = "127.0.0.1"


def address_option(
    default: str, help: str, port: int, host: str = HOME, scheme: str = "", **facts: Any
) -> Any:
    """An option whose value becomes HOST:PORT; `port` and `host` stand in for a part that is left out. `scheme`: it
    becomes a URL, and may be one."""
    read = partial(whole_address, port=port, host=host, scheme=scheme)
    return option(default, help, **{"metavar": "HOST:PORT", "read": read, **facts})


def whole_address(given: str, port: int, host: str = HOME, scheme: str = "") -> str:
    """HOST:PORT of HOST:PORT, HOST, PORT or an IPv6 address; "" stays "" (nowhere). `scheme`: see `address_option`.

    Raises UsageError.
    """
    whole = text = given.strip()
    if not text or (scheme and "/" in text):
        return text if "://" in text or not text else f"{scheme}{text}"
    if text.isascii() and text.isdigit():
        whole = f"{host}:{text}"
    elif text.count(":") > 1 and not text.startswith("["):  # of IPv6
        whole = f"[{text}]:{port}"
    elif ":" not in text or text.endswith("]"):
        whole = f"{text}:{port}"
    try:
        host_port(whole)
    except UsageError:
        raise UsageError(
            f"{given!r} is not an address; write HOST:PORT, a host or a port, such as {host}:{port}"
        ) from None
    return f"{scheme}{whole}"


def server_address(given: str, port: int) -> str:
    """The same of a server, which may also be looked for on the network."""
    return given if given == MDNS else whole_address(given, port)
