"""Certificates and keys in PEM files, checked before use: gRPC and uvicorn would only fail to connect."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from opensled.errors import UsageError
from opensled.files import read_bytes, read_secret


@dataclass(frozen=True)
class Identity:
    """A certificate chain and its private key, PEM: the identity of one end of a TLS connection."""

    cert: bytes
    key: bytes = field(repr=False)


def read_identity(
    cert: str, key: str, flags: tuple[str, str] = ("--tls-cert", "--tls-key")
) -> Identity | None:
    """The identity in two files, None without any; raises UsageError or NotFound, naming `flags` or the file."""
    if bool(cert) != bool(key):
        raise UsageError(f"{flags[0]} and {flags[1]} go together: give both, or neither")
    if not cert:
        return None
    identity = Identity(read_bytes(cert, "certificate file"), read_secret(key, "key file"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    paths = Path(cert).expanduser(), Path(key).expanduser()
    try:
        context.load_cert_chain(*paths, password=lambda: "")  # else OpenSSL would ask the terminal for one
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UsageError(
            f"{cert} and {key} are no PEM certificate and its key; remove a passphrase with: openssl pkey -in KEY"
        ) from error
    return identity


def read_authorities(path: str | Path) -> bytes:
    """The certificates (PEM) in a file, at least one; raises UsageError or NotFound, naming the file."""
    pem = read_bytes(path, "certificate file")
    try:
        text = pem.decode("ascii", "ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text or "nothing")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"certificate file {path} holds no PEM certificate, which begins with -----BEGIN CERTIFICATE-----"
        ) from error
    return pem
