"""Checks the server that drafts: what it is, and how far away. How fast it writes is told by the short answers."""

from __future__ import annotations

import asyncio
import statistics
import time

from edge_client.device.config import DeviceConfig
from edge_client.doctor.finding import Finding, ok, report_error, warn
from edge_client.draft_servers.address import DraftAddress, draft_address
from edge_client.draft_servers.detection import OLLAMA, Found, find_server
from edge_client.draft_servers.http_stream import fetch
from opensled.core.errors import OpenSledError

HOPS = 5  # requests to measure the way to the server with


async def check_draft_server(config: DeviceConfig) -> list[Finding]:
    """The findings on it."""
    try:
        address = draft_address(config.draft_url, config.draft_key, config.draft_ca)
        found, hop_s = await asyncio.to_thread(_find, address, config.draft_model)
    except OpenSledError as error:
        fix = (
            "start it, and compare --draft-url, --draft-model and draft-key; drafts come by lookup meanwhile"
        )
        return [report_error("draft server", error, fix)]
    place = f"{found.kind} {found.model} at {address.place}, {1000 * hop_s:.1f} ms away"
    clear = warn("draft key", "it travels in clear text", "serve with TLS: --draft-url https://...")
    return [ok("draft server", place), *([clear] if address.key_in_clear else [])]


def _find(address: DraftAddress, model: str) -> tuple[Found, float]:
    """The server, and the seconds of a request that costs it nothing."""
    found = find_server(address, model)
    seconds = []
    for _ in range(HOPS):
        began = time.perf_counter()
        fetch(address, "/api/version" if found.kind == OLLAMA else "/v1/models")
        seconds.append(time.perf_counter() - began)
    return found, statistics.median(seconds)
