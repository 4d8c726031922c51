"""Options of all device commands that connect to a server: its address, and this device's credentials."""

from dataclasses import dataclass
from functools import partial

from opensled.cli.addresses import address_option, server_address
from opensled.cli.config import option


@dataclass(frozen=True)
class LinkConfig:
    """How a device reaches its server."""

    server: str = address_option(
        "127.0.0.1:7411",
        "address of the server (opensled serve); mdns = find the server that announces itself on this network",
        paired=True,
        group="server",
        often=True,
        port=7411,
        read=partial(server_address, port=7411),
    )
    token_file: str = option(
        "",
        "file with this device's bearer token for the server, file mode 600",
        metavar="FILE",
        often=True,
        sent_to=("server", "fallback", "tls", "tls_ca", "client_cert", "tls_name"),
        paired=True,
    )
    tls: bool = option(
        False,
        "connect with TLS, and trust the certificate authorities of this system; for your own authority: --tls-ca",
        often=True,
        paired=True,
    )
    tls_ca: str = option(
        "",
        "certificate authorities (PEM) to trust instead of the system's; turns TLS on",
        metavar="FILE",
        paired=True,
    )
    tls_name: str = option(
        "",
        "host name that the server's certificate must have; default: the host of --server",
        metavar="HOST",
    )
    client_cert: str = option(
        "", "this device's certificate (PEM), for servers that require one; turns TLS on", metavar="FILE"
    )
    client_key: str = option("", "private key of --client-cert (PEM), file mode 600", metavar="FILE")
