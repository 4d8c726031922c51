"""Options of `opensled serve`: who may connect, by files of one's own or by pairing."""

from dataclasses import dataclass

from opensled.cli.config import option

FOLDER_HELP = (
    "folder with a home's certificate authority, certificate and tokens; default: ~/.config/opensled/home"
)


@dataclass(frozen=True)
class AccessConfig:
    """Who may connect to a server, and how they find it."""

    tls_cert: str = option(
        "",
        "certificate chain (PEM); turns TLS on, together with --tls-key",
        metavar="FILE",
        group="access",
        often=True,
    )
    tls_key: str = option("", "private key of the certificate (PEM), file mode 600", metavar="FILE")
    tls_client_ca: str = option(
        "",
        "certificates (PEM) of an authority; only clients with a certificate that it signed may connect; without "
        "--tokens the common name in that certificate is the tenant",
        metavar="FILE",
    )
    tokens: str = option(
        "",
        "file with the bearer tokens that clients must present, one per line: TOKEN TENANT [max_sessions=N] "
        "[max_prompt=N] [positions_per_s=N] [kv_tokens=N] [max_pace=N] [strict=1] [keep=1]; file mode 600",
        metavar="FILE",
        often=True,
    )
    paired: bool = option(
        False,
        "serve the devices paired by `opensled pair`, with the certificate and the tokens in --folder",
        often=True,
    )
    folder: str = option("", FOLDER_HELP, metavar="FOLDER")
    announce: bool = option(
        False,
        "announce this server by multicast DNS, so that devices find it with --server mdns; they still check its "
        "certificate",
    )
    insecure: bool = option(False, "allow other machines to connect without TLS or without tokens")
