"""Checks the server: its description, its round trip, and its own speed."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field, replace

import opensled
from edge_client.device.config import DeviceConfig
from edge_client.doctor.certificate import check_tls
from edge_client.doctor.finding import Finding, fail, ok, plain, report_error, warn
from edge_client.doctor.network import SECONDS, check_connection, check_name, check_plain
from edge_client.doctor.round_trips import jitter, round_trips
from opensled.core.errors import Loading, OpenSledError, Unauthorized, Unreachable
from opensled.core.files import user_path
from opensled.core.messages import ModelInfo
from opensled.net.address import host_port, is_local
from opensled.process.distribution import GUIDE, UPDATE_SERVER

PROBES, PROBE_SECONDS = 10, 4.0  # calls to measure the round trip with, and how long at most
NO_DRAFTS = "none"  # the --drafter that proposes nothing
SLOW = 0.25  # seconds; with a longer round trip drafts do not pay for one user


@dataclass
class ServerReport:
    """The findings on the server, and what the other checks need of it."""

    findings: list[Finding] = field(default_factory=list)
    info: ModelInfo | None = None
    decode_s: float = 0.0  # of a token that it decodes by itself; 0 = not known
    tokenizer_json: str = ""  # the target's; "" = not needed, or it did not come

    @property
    def usable(self) -> bool:
        """Whether it was asked and nothing speaks against it."""
        return self.info is not None and all(finding.status != "fail" for finding in self.findings)

    def note(self, *findings: Finding) -> bool:
        """Add findings; False if one of them is a failure."""
        self.findings += findings
        return all(finding.status != "fail" for finding in findings)


async def check_server(config: DeviceConfig, report: ServerReport) -> None:
    """Fill `report` step by step, up to the first that fails."""
    host, port = host_port(config.server)
    finding, addresses = await check_name(host, port)
    if not report.note(finding):
        return
    finding, peer = await check_connection(host, addresses, port)
    if not report.note(finding) or peer is None:
        return
    tls = config.tls or bool(config.tls_ca or config.client_cert)
    findings = await check_tls(config, peer) if tls else [await check_plain(peer)]
    if report.note(*findings):
        await _ask(config, tls, report)


async def _ask(config: DeviceConfig, tls: bool, report: ServerReport) -> None:
    # Imported here: another check reports a broken gRPC
    from edge_client.device.device import endpoint_of
    from edge_client.doctor.server_speed import check_server_speed
    from edge_client.link.link import Link
    from edge_client.link.tokenizer_cache import load_json

    try:
        endpoint = endpoint_of(config)
    except OpenSledError as error:
        report.note(report_error("token", error, "correct that file, or name another"))
        return
    link = Link(replace(endpoint, timeout=SECONDS))
    try:
        report.info = await link.describe()
        report.note(_report_token(bool(endpoint.token), tls, config.server))
        usable = report.note(*check_description(report.info, config.rule))
        trips = await round_trips(link, PROBES, PROBE_SECONDS)
        report.note(check_round_trip(trips))
        if usable:
            speed = await check_server_speed(link, report.info, config.rule)
            if isinstance(speed, Finding):
                report.note(speed)
            else:
                report.decode_s = speed
            if config.draft_model or config.draft_url:
                with contextlib.suppress(OpenSledError):
                    cache = user_path(config.cache_dir)
                    report.tokenizer_json = (
                        await load_json(report.info, link.tokenizer_json, cache)
                    ).decode()
    except Unauthorized as error:
        report.note(_report_lockout(error, bool(endpoint.token)))
    except Unreachable as error:
        report.note(_deaf(error))
    except OpenSledError as error:
        report.note(report_error("server", error, "is it an OpenSLED server? see its log"))
    finally:
        await link.close()


def _report_token(has_token: bool, tls: bool, server: str) -> Finding:
    if has_token and not tls and not is_local(server):
        return warn(
            "token",
            "accepted, but it travels in clear text",
            "serve with --tls-cert and connect with --tls-ca",
        )
    return ok("token", "accepted" if has_token else "none, and the server asks for none")


def _report_lockout(error: Unauthorized, has_token: bool) -> Finding:
    fix = "ask the server's owner for a token and pass --token-file FILE"
    if has_token:
        fix = "compare the token with the server's --tokens file; it may have been replaced"
    return report_error("token", error, fix)


def _deaf(error: Unreachable) -> Finding:
    """The single steps worked, but gRPC does not."""
    fix = "is it an OpenSLED server? see its log"
    if isinstance(error, Loading):
        fix = "wait until it prints its ready line, `listening on ...`, and run this again"
    return fail("server", str(error), fix, Unreachable)


def check_description(info: ModelInfo, rule: str) -> list[Finding]:
    """What the server describes, and whether this device can use it."""
    told = _describe_info(info)
    if not (info.model_id and info.vocab_size and info.limits.context_length and info.fingerprint):
        return [
            fail(
                "server",
                f"it describes no usable model: {told}",
                UPDATE_SERVER,
            )
        ]
    findings = [ok("server", told)]
    if not info.serves(rule):
        findings.append(_rule(rule, info.rule_names))
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


def _rule(rule: str, served: tuple[str, ...]) -> Finding:
    fix = f"--rule {plain(served[0])[:20]}" if served else UPDATE_SERVER
    return fail("rule", f"the server does not serve rule {rule!r}", fix)


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
