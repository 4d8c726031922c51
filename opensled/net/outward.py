"""The way from this process to others: past which proxy, and whose certificates count there."""

from __future__ import annotations

import ipaddress
import os
import ssl
from contextlib import suppress
from pathlib import Path

from opensled.net.address import as_ip, host_port

# Beside OpenSSL's own SSL_CERT_FILE and SSL_CERT_DIR; other programs follow these, so a company sets them
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Of the system, where this Python was built for another one
SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem", "/etc/ssl/cert.pem")
NEAR_NAMES = (".localhost", ".local", ".lan", ".home", ".home.arpa", ".internal", ".intranet")
SHARED = ipaddress.ip_network("100.64.0.0/10")  # also of tailnets (RFC 6598)
CLOCK_CODES = (9, 10)  # of OpenSSL: not yet valid, expired


def is_near(host: str) -> bool:
    """Whether a host is this machine or one of its own network: no proxy stands before it."""
    name = host.strip("[]").rstrip(".").lower()
    found = as_ip(name.partition("%")[0])
    if found is None:
        return "." not in name or name.endswith(NEAR_NAMES)
    return found.is_private or (found.version == 4 and found in SHARED)


def grpc_proxy(address: str) -> str:
    """The proxy through which gRPC goes to a server; "" = none. Of the variables only gRPC's own one leads there:
    those for the web are set for a browser, and few such proxies let HTTP/2 through."""
    named = os.environ.get("grpc_proxy", "")  # noqa: SIM112  gRPC knows it in these letters alone
    return "" if is_near(host_port(address)[0]) else named


def grpc_way(address: str) -> tuple[tuple[str, int], ...]:
    """Options of a channel to `address`."""
    return (("grpc.enable_http_proxy", int(bool(grpc_proxy(address)))),)


def tls_context(ca: str = "") -> ssl.SSLContext:
    """A context that trusts the authorities in `ca` (PEM text), "" = those of this system and of its variables.

    Raises ssl.SSLError or ValueError for text that holds no certificate.
    """
    context = ssl.create_default_context(cadata=ca or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the authorities of many companies lack what it asks for
    for place in () if ca else _further():
        with suppress(OSError):  # also of OpenSSL: it holds no certificate
            context.load_verify_locations(**{"capath" if Path(place).is_dir() else "cafile": place})
    return context


def system_authorities() -> bytes | None:
    """The authorities that `tls_context` trusts, as PEM; None = this system has none.

    For gRPC, which knows neither the system's own ones nor the variables.
    """
    paths = ssl.get_default_verify_paths()
    places = (paths.cafile or paths.capath, os.environ.get(paths.openssl_capath_env), *_further())
    return b"\n".join(_read(Path(place)) for place in places if place).strip() or None


def _further() -> list[str]:
    """Files and folders of authorities that OpenSSL does not know by itself."""
    named = [os.environ[name] for name in BUNDLES if os.environ.get(name)]
    paths = ssl.get_default_verify_paths()
    empty = not paths.cafile and not (paths.capath and any(Path(paths.capath).iterdir()))
    return [*named, *([place for place in SYSTEM_BUNDLES if Path(place).is_file()][:1] if empty else [])]


def _read(place: Path) -> bytes:
    """The file, or the files of the folder; b"" for what cannot be read."""
    with suppress(OSError):
        found = sorted(place.iterdir()) if place.is_dir() else [place]
        return b"\n".join(path.read_bytes() for path in found if path.is_file())
    return b""


def why_untrusted(error: object, remedy: str) -> str:
    """The cause and the next step where a certificate was not accepted; "" for any other error. `remedy`: names the
    option for an authority."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    if error.verify_code in CLOCK_CODES:
        remedy = "is this machine's clock right? (timedatectl set-ntp true)"
    return f"its certificate is not accepted ({error.verify_message}); {remedy}"
