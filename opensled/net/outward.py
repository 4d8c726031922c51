"""The way from this process to others: past which proxy, and whose certificates count there."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import ssl
from contextlib import suppress
from pathlib import Path

from opensled.net.address import NEAR_NAMES, as_ip, host_port

# OpenSSL's own two; other programs follow the others, so a company sets them
VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Of the system, where this Python was built for another one
SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/cert.pem", "/etc/ssl/cert.pem")
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
    for place in () if ca else _places():
        with suppress(OSError):
            context.load_verify_locations(cadata=_pem(place).decode("ascii", "ignore"))
    return context


def system_authorities() -> bytes | None:
    """The authorities that `tls_context` trusts, as PEM; None = this system has none.

    For gRPC, which knows neither the system's own ones nor the variables.
    """
    paths, found = ssl.get_default_verify_paths(), list[bytes]()
    for place in (paths.cafile or paths.capath, *_places()):
        with suppress(OSError):
            found += [_pem(Path(str(place)))] if place else []
    return b"\n".join(found).strip() or None


def unusable_authorities() -> str:
    """The variables that name a file or folder from which no authority can be read, each with the cause, before the
    next step; "" = none."""
    told = ""
    for name, place in _named():
        try:
            _pem(place)
        except OSError as error:
            told += f"{name} names {place}, which cannot be used: {error.strerror or error}; "
    return told


def _named() -> list[tuple[str, Path]]:
    """What each variable names; the one for folders may name several."""
    found = [(name, os.environ.get(name, "")) for name in VARIABLES]
    several = [(name, value.split(os.pathsep) if name.endswith("DIR") else [value]) for name, value in found]
    return [(name, Path(place)) for name, places in several for place in places if place]


def _places() -> list[Path]:
    """Files and folders of authorities, beside those that OpenSSL finds."""
    paths = ssl.get_default_verify_paths()
    empty = not paths.cafile and not (paths.capath and any(Path(paths.capath).glob("*")))
    usual = [path for path in map(Path, SYSTEM_BUNDLES) if path.is_file()][:1] if empty else []
    return list(dict.fromkeys(place.resolve() for place in (*(place for _, place in _named()), *usual)))


def _pem(place: Path) -> bytes:
    """The certificates in a file, in PEM or DER (a .crt of Windows), or in the files of a folder, as PEM. Raises
    OSError."""
    if not place.is_dir():
        content = place.read_bytes()
        if re.search(rb"-----BEGIN (TRUSTED )?CERTIFICATE-----", content):
            return content
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content)
        except (ssl.SSLError, ValueError) as error:
            raise OSError(errno.EINVAL, "it holds no certificate (PEM or DER)") from error
        return ssl.DER_cert_to_PEM_cert(content).encode()
    found = list[bytes]()
    for path in sorted(place.iterdir()):
        with suppress(OSError):
            found += [_pem(path)] if path.is_file() else []
    if not found:
        raise OSError(errno.EINVAL, "it holds no certificate")
    return b"\n".join(found)


def why_untrusted(error: object, remedy: str) -> str:
    """The cause and the next step where a certificate was not accepted; "" for any other error. `remedy`: names the
    option for an authority."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    if error.verify_code in CLOCK_CODES:
        remedy = "is this machine's clock right? (timedatectl set-ntp true)"
    return f"its certificate is not accepted ({error.verify_message}); {unusable_authorities()}{remedy}"
