"""The server's certificate: trusted, for this name, and for how long."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from edge_client.device.config import DeviceConfig
from edge_client.doctor.finding import Finding, fail, in_thread, ok, report_error, warn
from edge_client.doctor.network import SECONDS, Peer, greet, report_greeting, untrusting
from edge_client.link.located import trusting_context
from opensled.core.errors import OpenSledError, Unauthorized, Unreachable

DAY = 86400.0
SOON = 30  # days before its end that a certificate is worth a warning
# X509_V_ERR_* of OpenSSL's x509_vfy.h
NOT_YET_VALID, EXPIRED = 9, 10
NAME_MISMATCHES = (62, 64)  # host name, IP address


@dataclass(frozen=True)
class Validity:
    """From when until when a certificate is valid, in seconds since 1970."""

    begins: float
    ends: float


async def check_tls(config: DeviceConfig, peer: Peer) -> list[Finding]:
    """Check certificate and protocol, with the device's own certificate if one is configured."""
    try:
        context = await in_thread(lambda: trusting_context(config))
    except (OpenSledError, OSError, ssl.SSLError) as error:
        return [report_error("certificate", error, "ask the operator of the server for its certificate")]
    validity = await _validity(peer)
    peer = replace(peer, host=config.tls_name or peer.host)
    try:
        greeting = await greet(peer, context)
    except ssl.SSLCertVerificationError as error:
        return [_report_refusal(error, validity, peer.host, config.tls_ca)]
    except ssl.SSLError as error:
        return [_broken(error, bool(config.client_cert))]
    except (OSError, asyncio.TimeoutError) as error:
        return [_no(f"the TLS handshake broke: {error or 'no answer'}", "see the server's log")]
    if greeting == "closed":  # gRPC's servers send no alert
        return [
            _lifetime(validity),
            _shut_out(bool(config.client_cert), "it ends the connection after the handshake"),
        ]
    return [_lifetime(validity), report_greeting(greeting)]


def _report_refusal(
    error: ssl.SSLCertVerificationError, validity: Validity | None, host: str, ca: str
) -> Finding:
    """Why the certificate is not valid: expired, not yet valid, another name, or not trusted."""
    code, now = error.verify_code, time.time()
    if code == EXPIRED:
        since = f" {(now - validity.ends) / DAY:.0f} days ago" if validity and validity.ends < now else ""
        return _no("expired" + since, "renew the server's certificate; if it is new, set this device's clock")
    if code == NOT_YET_VALID:
        begins = f" before {_date(validity.begins)}" if validity else ""
        clock = time.strftime("%Y-%m-%d", time.gmtime(now))
        return _no(
            f"not valid{begins}, and this device's clock says {clock}",
            "set the clock: sudo timedatectl set-ntp true",
        )
    if code in NAME_MISMATCHES:
        return _no(
            f"not for {host!r}: {error.verify_message}",
            "connect by a name that the certificate holds, or have one made for this name",
        )
    trusted = f"the certificates in {ca}" if ca else "the certificate authorities this device trusts"
    return _no(
        f"not signed by {trusted} ({error.verify_message})",
        "--tls-ca FILE with the certificate (or its authority) that the server's owner gave you",
    )


def _no(detail: str, fix: str) -> Finding:
    return fail("certificate", detail, fix, Unreachable)


def _broken(error: ssl.SSLError, has_own: bool) -> Finding:
    reason = (error.reason or str(error)).upper()
    shown = reason.lower().replace("_", " ")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return _no("the server speaks without TLS", "leave out --tls, --tls-ca and --client-cert")
    if any(sign in reason for sign in ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE")):
        return _shut_out(has_own, f"it refuses the handshake ({shown})")
    return _no(f"the TLS handshake failed: {shown}", "see the server's log")


def _shut_out(has_own: bool, sign: str) -> Finding:
    """The server accepts only devices with a certificate that it trusts."""
    if has_own:
        return fail(
            "own certificate",
            f"the server seems not to accept this device's certificate: {sign}",
            "have one made by the authority that the server trusts (serve --tls-client-ca); see its dates, too",
            Unauthorized,
        )
    return fail(
        "own certificate",
        f"the server seems to ask this device for a certificate, and none is configured: {sign}",
        "--client-cert FILE --client-key FILE",
        Unauthorized,
    )


def _lifetime(validity: Validity | None) -> Finding:
    if validity is None:
        return ok("certificate", "trusted")
    days = (validity.ends - time.time()) / DAY
    detail = f"trusted, valid until {_date(validity.ends)} ({days:.0f} days)"
    if days < SOON:
        return warn("certificate", detail, "renew the server's certificate before that day")
    return ok("certificate", detail)


async def _validity(peer: Peer) -> Validity | None:
    """Of the server's certificate, trusted or not."""
    opening = asyncio.open_connection(peer.address, peer.port, ssl=untrusting(), server_hostname=peer.host)
    try:
        _, writer = await asyncio.wait_for(opening, SECONDS)
    except (OSError, asyncio.TimeoutError):
        return None
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    try:
        return read_validity(shown or b"")
    except (ValueError, IndexError):
        return None


def read_validity(der: bytes) -> Validity:
    """The dates of a DER certificate (RFC 5280, 4.1); the `ssl` module gives them only for a trusted one.

    Raises ValueError or IndexError for other bytes.
    """
    _, certificate = next(_elements(der))
    _, content = next(_elements(certificate))
    # Without the version, which is optional
    fields = [body for tag, body in _elements(content) if tag != 0xA0]
    begins, ends = _elements(fields[3])  # after serial number, signature algorithm and issuer
    return Validity(_seconds(*begins), _seconds(*ends))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of the DER elements that lie in `data` one after another."""
    while data:
        length, start = data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start], "big")
        if start + length > len(data):
            raise ValueError("truncated")
        yield data[0], data[start : start + length]
        data = data[start + length :]


def _seconds(tag: int, content: bytes) -> float:
    """UTCTime (tag 0x17, years 1950 to 2049) or GeneralizedTime."""
    pattern = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(content.decode("ascii"), pattern).replace(tzinfo=timezone.utc).timestamp()


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
