"""Checks the server by the calls that a device makes: its description, its certificate's end, and its round trip.

Why a call fails is told by the client's own error (edge_client/link/link_errors.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import opensled
from edge_client.device.config import DeviceConfig
from edge_client.device.device import endpoint_of
from edge_client.doctor.finding import Finding, fail, ok, plain, report_error, warn
from edge_client.link.link import Link
from edge_client.link.located import trusting_context
from opensled.core.errors import OpenSledError, Unauthorized, Unreachable
from opensled.core.messages import ModelInfo
from opensled.net.address import host_port, is_local
from opensled.process.distribution import GUIDE, UPDATE_SERVER

SECONDS = 3.0  # for one call
PROBES, PROBE_SECONDS = 10, 4.0  # calls to measure the round trip with, and how long at most
SLOW = 0.25  # seconds; with a longer round trip drafts do not pay for one user
DAY = 86400.0
SOON = 30  # days before its end that a certificate is worth a warning


async def check_server(config: DeviceConfig, findings: list[Finding]) -> ModelInfo | None:
    """Add findings up to the first that fails; the server's description if this device can use it."""
    try:
        endpoint = endpoint_of(config)
    except OpenSledError as error:
        findings.append(report_error("token", error, "correct that file, or name another"))
        return None
    link = Link(replace(endpoint, timeout=SECONDS))
    try:
        info = await link.describe()
        if endpoint.tls:
            findings += await check_lifetime(config)
        findings.append(_report_token(bool(endpoint.token), endpoint.tls, config.server))
        described = check_description(info, config.rule)
        findings += described
        findings.append(check_round_trip(await round_trips(link, PROBES, PROBE_SECONDS)))
        return None if any(finding.status == "fail" for finding in described) else info
    except OpenSledError as error:
        findings.append(_report_no_answer(error))
        return None
    finally:
        await link.close()


def _report_no_answer(error: OpenSledError) -> Finding:
    if isinstance(error, Unreachable):
        return report_error("connection", error, "see that the server is on, and that no firewall is between")
    if isinstance(error, Unauthorized):
        return report_error(
            "token", error, "pair this device, or ask the server's owner for a token: --token-file"
        )
    return report_error("server", error, "is it an OpenSLED server? see its log")


async def check_lifetime(config: DeviceConfig) -> list[Finding]:
    """Until when the certificate of a server that answers is valid: no error tells that before it is too late.

    Nothing is found on the way through a proxy, which gRPC goes and this check does not.
    """
    host, port = host_port(config.server)
    name = config.tls_name or host
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        opening = asyncio.open_connection(host, port, ssl=trusting_context(config), server_hostname=name)
        _, writer = await asyncio.wait_for(opening, SECONDS)
        ends = writer.get_extra_info("peercert")["notAfter"]
        writer.transport.abort()  # gRPC's servers do not answer a farewell
        return [_report_lifetime(ssl.cert_time_to_seconds(ends))]
    return []


def _report_lifetime(until: float) -> Finding:
    """Of a trusted certificate."""
    days = (until - time.time()) / DAY
    detail = f"trusted, valid until {time.strftime('%Y-%m-%d', time.gmtime(until))} ({days:.0f} days)"
    if days < SOON:
        return warn("certificate", detail, "renew the server's certificate before that day")
    return ok("certificate", detail)


def _report_token(has_token: bool, tls: bool, server: str) -> Finding:
    if has_token and not tls and not is_local(server):
        fix = "serve with --tls-cert and connect with --tls-ca"
        return warn("token", "accepted, but it travels in clear text", fix)
    return ok("token", "accepted" if has_token else "none, and the server asks for none")


def check_description(info: ModelInfo, rule: str) -> list[Finding]:
    """What the server describes, and whether this device can use it."""
    told = _describe_info(info)
    if not (info.model_id and info.vocab_size and info.limits.context_length and info.fingerprint):
        return [fail("server", f"it describes no usable model: {told}", UPDATE_SERVER)]
    findings = [ok("server", told)]
    if not info.serves(rule):
        fix = f"--rule {plain(info.rule_names[0])[:20]}" if info.rule_names else UPDATE_SERVER
        findings.append(fail("rule", f"the server does not serve rule {rule!r}", fix))
    if info.version != opensled.__version__:
        findings.append(_versions(plain(info.version)[:40]))
    if not info.has_chat_template:
        fix = 'continue texts instead: opensled generate --raw "TEXT"'
        findings.append(warn("chat", "the target has no chat template", fix))
    return findings


def _describe_info(info: ModelInfo) -> str:
    """All in one line, with bounds against a hostile server."""
    limits = info.limits
    return (
        f"{plain(info.model_id)[:80]}, numerics {plain(info.numerics)[:20]}, "
        f"rules {plain(', '.join(info.rule_names))[:80]}, context {limits.context_length}, "
        f"drafts up to {limits.max_draft}, version {plain(info.version)[:40]}"
    )


def _versions(theirs: str) -> Finding:
    return warn(
        "version",
        f"the server has {theirs or 'none'}, this device {opensled.__version__}",
        f"install version {plain(theirs)} here ({GUIDE})" if theirs[:1].isdigit() else UPDATE_SERVER,
    )


def check_round_trip(trips: list[float]) -> Finding:
    """`trips` in seconds, at least one."""
    median = statistics.median(trips)
    detail = f"{1000 * median:.1f} ms median of {len(trips)}, jitter {1000 * jitter(trips):.1f} ms"
    if median > SLOW:
        return warn(
            "round trip",
            f"{detail}: every draft block waits that long for its verdict",
            "use a nearer server or a better link; or do not draft: --drafter none",
        )
    return ok("round trip", detail)


async def round_trips(link: Link, count: int, seconds: float) -> list[float]:
    """Seconds of up to `count` Describe calls, one after another, for at most `seconds`; at least one.

    The connection is open already. Raises the errors of `Link.describe`.
    """
    trips: list[float] = []
    deadline = time.monotonic() + seconds
    while not trips or (len(trips) < count and time.monotonic() < deadline):
        started = time.monotonic()
        await link.describe()
        trips.append(time.monotonic() - started)
        await asyncio.sleep(0)
    return trips


def jitter(trips: Sequence[float]) -> float:
    """Mean difference between one round trip and the next (as in RFC 3550); 0 for a single one."""
    return statistics.fmean(abs(after - before) for before, after in pairwise(trips)) if trips[1:] else 0.0
