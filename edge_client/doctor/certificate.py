"""The server's certificate: trusted, for this name, and for how long."""

import asyncio
import ssl
import time
from dataclasses import replace

from edge_client.device.config import DeviceConfig
from edge_client.doctor.finding import Finding, fail, in_thread, ok, report_error, warn
from edge_client.doctor.network import Peer, greet, report_greeting
from edge_client.link.located import trusting_context
from opensled.core.errors import OpenSledError, Unauthorized, Unreachable

DAY = 86400.0
SOON = 30  # days before its end that a certificate is worth a warning
# X509_V_ERR_* of OpenSSL's x509_vfy.h: not yet valid, and expired, with what to do
DATES = {
    9: "set the clock: sudo timedatectl set-ntp true",
    10: "renew the server's certificate; if it is new, set this device's clock",
}
NAME_MISMATCHES = (62, 64)  # host name, IP address


async def check_tls(config: DeviceConfig, peer: Peer) -> list[Finding]:
    """Check certificate and protocol, with the device's own certificate if one is configured."""
    try:
        context = await in_thread(lambda: trusting_context(config))
    except (OpenSledError, OSError, ssl.SSLError) as error:
        return [report_error("certificate", error, "ask the operator of the server for its certificate")]
    peer = replace(peer, host=config.tls_name or peer.host)
    try:
        greeting, ends = await greet(peer, context)
    except ssl.SSLCertVerificationError as error:
        return [_report_refusal(error, peer.host, config.tls_ca)]
    except ssl.SSLError as error:
        return [_broken(error, bool(config.client_cert))]
    except (OSError, asyncio.TimeoutError) as error:
        return [_no(f"the TLS handshake broke: {error or 'no answer'}", "see the server's log")]
    if greeting == "closed":  # gRPC's servers send no alert
        return [
            _lifetime(ends),
            _shut_out(bool(config.client_cert), "it ends the connection after the handshake"),
        ]
    return [_lifetime(ends), report_greeting(greeting)]


def _report_refusal(error: ssl.SSLCertVerificationError, host: str, ca: str) -> Finding:
    """Why the certificate is not valid: expired, not yet valid, another name, or not trusted."""
    if error.verify_code in DATES:
        clock = time.strftime("%Y-%m-%d", time.gmtime())
        return _no(f"{error.verify_message} by this device's clock, {clock}", DATES[error.verify_code])
    if error.verify_code in NAME_MISMATCHES:
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


def _lifetime(ends: str) -> Finding:
    """Of a trusted certificate. `ends`: as the `ssl` module writes it."""
    until = ssl.cert_time_to_seconds(ends)
    days = (until - time.time()) / DAY
    detail = f"trusted, valid until {time.strftime('%Y-%m-%d', time.gmtime(until))} ({days:.0f} days)"
    if days < SOON:
        return warn("certificate", detail, "renew the server's certificate before that day")
    return ok("certificate", detail)
