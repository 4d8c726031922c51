"""Options of `opensled serve`: who may connect, by files of one's own or by pairing."""

from dataclasses import dataclass

from opensled.cli.config import option

FOLDER_HELP = "folder of a home's authority, certificate and tokens; default: ~/.config/opensled/home"


@dataclass(frozen=True)
class AccessConfig:
    """Who may connect to a server, and how they find it."""

    tls_cert: str = option(
        "",
        "certificate chain (PEM); with --tls-key turns TLS on",
        metavar="FILE",
        group="who may connect",
        often=True,
    )
    tls_key: str = option("", "private key of the certificate (PEM), file mode 600", metavar="FILE")
    tls_client_ca: str = option(
        "",
        "admit only clients with a certificate of this authority (PEM); without --tokens its common name is the "
        "tenant",
        metavar="FILE",
    )
    tokens: str = option(
        "",
        "bearer tokens that may connect, one per line: TOKEN TENANT [max_sessions=N] [max_prompt=N] "
        "[positions_per_s=N] [kv_tokens=N] [max_pace=N] [strict=1] [keep=1]; file mode 600",
        metavar="FILE",
        often=True,
    )
    paired: bool = option(
        False,
        "serve the devices that opensled pair paired, with the certificate and the tokens of --folder",
        often=True,
    )
    folder: str = option("", FOLDER_HELP, metavar="FOLDER")
    announce: bool = option(
        False, "announce this server by multicast DNS, for devices with --server mdns; it proves nothing"
    )
    insecure: bool = option(False, "listen beyond this machine without TLS, or to unknown clients")
