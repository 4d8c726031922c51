"""Checks the server that drafts: what it is, how it speaks with this device, and how fast it writes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable
from contextlib import closing

from edge_client.device.config import DeviceConfig
from edge_client.doctor.draft_speed import begin_sequence, measure_rate
from edge_client.doctor.finding import Finding, fail, in_thread, ok, report_error, warn
from edge_client.doctor.server_checks import ServerReport
from edge_client.draft_servers.address import DraftAddress, draft_address
from edge_client.draft_servers.detection import OLLAMA, Found, find_server
from edge_client.draft_servers.http_stream import fetch
from edge_client.draft_servers.server import DraftServer
from edge_client.drafters.outage import Outage
from opensled.core.errors import DraftSourceError, OpenSledError
from opensled.core.printable import digits
from opensled.text.tokenizer import TargetTokenizer

PROMPT, TOKENS, SECONDS = (
    16,
    24,
    1.5,
)  # tokens of a prompt; tokens to measure the speed with, and how long at most
SEE_LOG = "see its log"
HOPS = 5  # requests to measure the way to the server with


async def check_draft_server(config: DeviceConfig, server: Awaitable[ServerReport]) -> list[Finding]:
    """The findings on it; on its speed where the target is known."""
    try:
        address = draft_address(config.draft_url, config.draft_key, config.draft_ca)
        found, hop_s = await in_thread(lambda: _find(address, config.draft_model))
    except OpenSledError as error:
        fix = (
            "start it, and compare --draft-url, --draft-model and draft-key; drafts come by lookup meanwhile"
        )
        return [report_error("draft server", error, fix)]
    findings = [
        ok("draft server", f"{found.kind} {found.model} at {address.place}, {1000 * hop_s:.1f} ms away")
    ]
    if address.key_in_clear:
        findings.append(
            warn("draft key", "it travels in clear text", "serve with TLS: --draft-url https://...")
        )
    report = await server
    target = report.info
    if target is None or not report.tokenizer_json:
        return findings
    outage = Outage(address.place, wait_s=60.0)  # until it has loaded its model
    tokenizer = TargetTokenizer(report.tokenizer_json.encode())
    try:
        rate, mode = await in_thread(lambda: _try(DraftServer(found, target, tokenizer, outage)))
    except OpenSledError as error:
        return [*findings, report_error("draft server", error, SEE_LOG)]
    findings.append(ok("vocabulary", _describe_mode(mode)))
    if not rate:
        why = outage.reason or outage.words or "it has nothing to say after a short text"
        return [*findings, fail("draft speed", why, SEE_LOG, DraftSourceError)]
    return [*findings, check_pace(rate, report)]


def _find(address: DraftAddress, model: str) -> tuple[Found, float]:
    """The server, and the seconds of a request that costs it nothing."""
    found = find_server(address, model)
    seconds = []
    for _ in range(HOPS):
        began = time.perf_counter()
        fetch(address, "/api/version" if found.kind == OLLAMA else "/v1/models")
        seconds.append(time.perf_counter() - began)
    return found, statistics.median(seconds)


def _describe_mode(mode: str) -> str:
    if mode == "text":
        return "drafts by text, cut into the target's tokens here: fewer stand than of a model of the target's family"
    return "the server's ids are the target's: drafts by token ids"


def _try(served: DraftServer) -> tuple[float, str]:
    """Draft tokens/s of one sequence behind its first token, 0 = none came; and how the server speaks."""
    with closing(served.create()) as drafter:
        proposals = begin_sequence(drafter, PROMPT, 0)
        return measure_rate(proposals, TOKENS, SECONDS) if proposals else 0.0, served.mode


def check_pace(rate: float, report: ServerReport) -> Finding:
    """`rate`: draft tokens/s."""
    detail = f"{digits(rate)} tokens/s"
    own = 1 / report.decode_s if report.decode_s else 0.0
    if rate < own:
        return warn(
            "draft speed",
            f"{detail}, slower than the target itself ({digits(own)} tokens/s): the server asks for none",
            "use a smaller --draft-model there, or a faster machine",
        )
    return ok("draft speed", detail)
