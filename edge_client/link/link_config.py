"""Options of every verb of a device that speaks with a server: where it is, and this device's credentials."""

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.net.address import MDNS, host_port


def server_place(server: str) -> None:
    """Raises UsageError for what is neither HOST:PORT nor the word for discovery."""
    if server != MDNS:
        host_port(server)


@dataclass(frozen=True)
class LinkConfig:
    """How a device reaches its server."""

    server: str = option(
        "127.0.0.1:7411",
        "address of the verification server, see opensled serve; mdns = the one that announces itself on this network",
        metavar="HOST:PORT",
        check=server_place,
        paired=True,
        group="the server",
        often=True,
    )
    token_file: str = option(
        "",
        "file with the bearer token for the server, mode 600",
        metavar="FILE",
        often=True,
        sent_to=("server", "fallback", "tls", "tls_ca", "tls_cert", "tls_name"),
        paired=True,
    )
    tls: bool = option(
        False,
        "connect with TLS; for certificates of an authority of your own: --tls-ca",
        often=True,
        paired=True,
    )
    tls_ca: str = option(
        "", "certificates (PEM) to trust instead of the system's; turns TLS on", metavar="FILE", paired=True
    )
    tls_name: str = option(
        "",
        "host that the server's certificate must name, where --server gives another address of it; default: that of "
        "--server",
        metavar="HOST",
    )
    tls_cert: str = option(
        "", "this device's certificate (PEM), for a server that asks for one; turns TLS on", metavar="FILE"
    )
    tls_key: str = option("", "private key of --tls-cert (PEM), file mode 600", metavar="FILE")
