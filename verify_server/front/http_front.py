"""Serves the HTTP API beside gRPC, for as long as the server runs (`opensled serve --http`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.middleware import Middleware
from starlette.types import ASGIApp

from http_api.app import build_app
from http_api.guard import Access
from http_api.http_connection import ConnectionLimits
from http_api.listening import listen, tell_api
from http_api.loading import LoadingGate
from http_api.page.views import PageView
from http_api.server import ApiServer
from opensled.metrics.registry import Metric
from opensled.net.address import host_port, is_local, join_host_port, web_origins
from verify_server.access.client_limits import ClientLimits
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.client_guard import ClientGuard, RefusalCounter
from verify_server.front.operators import operators
from verify_server.front.sequences import Sequences
from verify_server.front.server_backend import ServerBackend
from verify_server.options.serve_config import ServeConfig

VERB = "opensled serve"
LOOK_SECONDS = 0.02  # between two looks at the connections of a server that drains; chosen


def connection_limits(limits: ClientLimits, linger: float) -> ConnectionLimits:
    """Over HTTP a connection carries one request at a time, so what gRPC limits in a connection counts by address."""
    each = limits.streams if limits.by_address and limits.by_connection else 0
    return ConnectionLimits(limits.first_s, max(linger, limits.farewell_s), each)


@dataclass(frozen=True)
class HttpFront:
    """The HTTP API of a server; until it is opened, it says that the server is loading."""

    config: ServeConfig
    address: str  # HOST:PORT
    server: ApiServer
    gate: LoadingGate
    ending: asyncio.Event  # once set, the answers end

    def open(
        self, sequences: Sequences, metrics: Sequence[Metric], view: PageView, model_id: str = ""
    ) -> None:
        """Serve `sequences` from now on. `view`: of the page; `model_id`: of the target, "" = not known yet."""
        self.gate.app = _app(self.config, sequences, metrics, view, self.ending)
        tell_api(self.address, tls=bool(self.config.tls_cert), model_id=model_id)

    async def over(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Until `idle` is done, and no connection from before `send_away` waits for its last request."""
        await idle()
        while self.server.waiting:
            await asyncio.sleep(LOOK_SECONDS)
            await idle()


@asynccontextmanager
async def http_front(
    config: ServeConfig, limits: ClientLimits, linger: float = SessionLimits.linger
) -> AsyncIterator[HttpFront]:
    """While inside, `config.http` is listened at; leaving ends the answers that still run.

    Raises OpenSledError if the address is taken.
    """
    address, gate, ending = config.http, LoadingGate(), asyncio.Event()
    server = ApiServer(
        gate,
        ending,
        config.tls_cert,
        config.tls_key,
        connection_limits(limits, linger),
        config.tls_client_ca,
    )
    listener = listen(address)
    shown = join_host_port(host_port(address)[0], listener.getsockname()[1])
    async with server.serving(listener):
        yield HttpFront(config, shown, server, gate, ending)


def _app(
    config: ServeConfig,
    sequences: Sequences,
    metrics: Sequence[Metric],
    view: PageView,
    ending: asyncio.Event,
) -> ASGIApp:
    backend = ServerBackend(sequences)
    access = Access(origins=web_origins(config.cors_origin), local=is_local(config.http), verb=VERB)
    at_home = sequences.tenants.anonymous or config.paired  # whose devices are all one person's
    admitted = operators(config.operator_keys, access.local and at_home)
    app = build_app(
        backend,
        access,
        ending,
        metrics=metrics,
        lenient=config.lenient,
        guard=Middleware(ClientGuard, sequences=sequences, operators=admitted),
        view=view,
        wait=config.http_wait,
    )
    return RefusalCounter(app, sequences.clients)
