"""Who may read a metrics port: this machine without conditions, all others over TLS and with a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opensled.core.errors import UsageError
from opensled.net.address import is_local


@dataclass(frozen=True)
class ScrapeGuard:
    """TLS and keys of a metrics port; by default it has neither."""

    cert: str = ""  # PEM files
    key: str = ""
    # Raises Unauthorized for an `authorization` header without a key
    admit: Callable[[str], None] | None = None


def scrape_guard(
    address: str,
    insecure: bool,
    cert: str,
    key: str,
    admit: Callable[[str], None] | None,
    flags: str,
) -> ScrapeGuard:
    """The guard of metrics at `address`. They name tenants and tell load, never texts.

    Raises UsageError for an address that other machines reach, without TLS or keys (`flags` give them), unless
    `insecure`.
    """
    if not address or insecure or is_local(address):
        return ScrapeGuard()
    if not (cert and key and admit):
        raise UsageError(
            f"--metrics {address} is reachable by other machines: add {flags}, or listen on 127.0.0.1, or set "
            "insecure-metrics (OPENSLED_INSECURE_METRICS=1) if the network itself is trusted"
        )
    return ScrapeGuard(cert, key, admit)
