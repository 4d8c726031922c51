"""The ports of a server, taken before it loads: a taken one is told at once, and clients hear why they must wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from opensled.metrics.registry import Metric, metrics_port
from opensled.metrics.scrape_guard import ScrapeGuard, scrape_guard
from opensled.net.probes import Probes
from verify_server.access.client_limits import ClientLimits
from verify_server.access.security import Tls
from verify_server.front import service
from verify_server.options.serve_config import ServeConfig

if TYPE_CHECKING:
    from verify_server.front.http_front import HttpFront

T = TypeVar("T")


@dataclass(frozen=True)
class Ports:
    """Those of --metrics and --http."""

    metrics: list[Metric]  # none until the server adds its own
    probes: Probes  # not ready until the server says so
    http: HttpFront | None  # not open yet; None = without --http


@asynccontextmanager
async def taken_ports(config: ServeConfig, limits: ClientLimits) -> AsyncIterator[Ports]:
    """While inside, these ports are served. Raises OpenSledError for a taken one."""
    metrics, probes = list[Metric](), Probes(asyncio.get_running_loop())
    with metrics_port(config.metrics, metrics, probes, scraping(config)):
        if not config.http:
            yield Ports(metrics, probes, None)
            return
        from verify_server.front.http_front import http_front

        async with http_front(config, limits) as http:
            yield Ports(metrics, probes, http)


def scraping(config: ServeConfig) -> ScrapeGuard:
    """Who may read the metrics: beyond this machine operators alone, as metrics name tenants.

    Raises UsageError, or NotFound for a file of keys.
    """
    admit = None
    if config.metrics and config.operator_keys:
        from verify_server.front.operators import operators

        admit = operators(config.operator_keys, open=False).admit
    return scrape_guard(
        config.metrics,
        config.insecure_metrics,
        config.tls_cert,
        config.tls_key,
        admit,
        "--tls-cert, --tls-key and --operator-keys FILE",
    )


async def while_loading(
    config: ServeConfig,
    tls: Tls | None,
    load: Callable[[], Coroutine[Any, Any, T]],
    stopping: asyncio.Future[Any],
) -> tuple[str, asyncio.Future[T]]:
    """Say at `config.listen` that the server is loading, until `load` or `stopping` is done.

    Returns HOST:PORT and what loads. Raises OpenSledError if the address is taken, before anything is loaded.
    """
    async with service.loading(config.listen, tls) as address:
        loading = asyncio.ensure_future(load())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    return address, loading
