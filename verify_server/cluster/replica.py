"""One replica of many: a whole server, started in its own thread by `scheduler/cluster/ray_runtime.py`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import grpc_health  # noqa: F401  gateways follow the health of a replica: without it none is one

from opensled.metrics.answer_counts import AnswerCounts
from opensled.net.address import host_port, join_host_port
from opensled.process import logs
from scheduler.cluster.placement import Heartbeat
from verify_server.access.client_limits import ClientLimits
from verify_server.access.security import Tenants, Tls
from verify_server.access.signing import (
    TOKEN_SECONDS,
    GatewayCredentials,
    GatewayTenants,
    TokenSigner,
    derive_key,
)
from verify_server.admission.session_manager import SessionManager
from verify_server.front import service
from verify_server.front.draining import LAST_MESSAGES_SECONDS
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig, model_names
from verify_server.start.command import Served, client_limits, clients, describe, make_manager, run

HAND_OVER_SECONDS = 10.0  # time for readers to leave a draining replica; chosen
BEAT_SECONDS = 30.0  # time for the event loop to answer; then it counts as broken; chosen


class Membership(NamedTuple):
    """A replica in its cluster."""

    replica: str  # its id
    host: str  # its machine's address in the cluster
    key: bytes  # the cluster's

    @property
    def signer(self) -> TokenSigner:
        """Signs the resume tokens that its gateways read."""
        return TokenSigner(time.time, TOKEN_SECONDS, self.key, self.replica)


def own_config(config: Mapping[str, Any], host: str) -> ServeConfig:
    """The configuration of a replica on the machine `host`: it listens for devices there, or nowhere (--proxy).

    `config`: fields of the gateway's `ServeConfig`.
    """
    given = ServeConfig(**config)
    logs.configure(given.log_level, given.log_json)
    listen = join_host_port(host if given.ray_address else host_port(given.listen)[0], 0)
    return replace(given, listen="" if given.proxy else listen)


def start(config: Mapping[str, Any], replica: str, host: str, key: bytes) -> ReplicaServer:
    """A server in a thread of its own. `config`: see `own_config`; the rest: see `Membership`.

    Loads the target, which takes a while; raises the errors of `opensled serve`.
    """
    settings, member = own_config(config, host), Membership(replica, host, key)
    tls, tenants = clients(settings, settings.listen)
    target = ENGINES.get(settings.engine)(settings)
    manager = make_manager(settings, target, tenants, member.signer, derive_key(key, "prefix"))
    info = describe(manager, target, settings.pad_frames, model_names(settings.served_model_name))
    server, opened = ReplicaServer(settings, member, tls, Served(manager, info, target)), Future[None]()
    threading.Thread(target=_run, args=(server, manager, opened), name="server", daemon=True).start()
    opened.result()
    return server


def _run(server: ReplicaServer, manager: SessionManager, opened: Future[None]) -> None:
    """Serve until the loop fails, which ends the replica."""

    async def serve() -> None:
        await server.open()
        opened.set_result(None)
        await manager.loop.run()

    try:
        run(serve())
    except BaseException as error:
        if opened.done():
            raise
        opened.set_exception(error)


class ReplicaServer:
    """See `scheduler.cluster.supervisor.HostedServer`: called from other threads than that of its event loop."""

    def __init__(self, config: ServeConfig, member: Membership, tls: Tls | None, served: Served) -> None:
        self._config, self._member, self._tls, self._served = config, member, tls, served
        self._manager = served.manager
        self._readiness, self._servers = service.Readiness(), list[service.Server]()

    async def open(self) -> None:
        """Listen, in the loop that runs; `heartbeat` and `drain` may be called from now on."""
        await self._readiness.set(True)
        self._loop = asyncio.get_running_loop()
        gateways = GatewayTenants(credentials=GatewayCredentials(self._member.key, time.time))
        limits = client_limits(self._config, self._manager)
        inner = await self._listen(join_host_port(self._member.host, 0), gateways, None, limits.from_gateways)
        public, tenants = self._config.listen, self._manager.limits.tenants
        outer = await self._listen(public, tenants, self._tls, limits) if public else inner
        self._addresses = outer, inner

    def heartbeat(self) -> Heartbeat:
        """The replica's state; raises an error if its server hangs or has ended."""
        return asyncio.run_coroutine_threadsafe(self._beat(), self._loop).result(BEAT_SECONDS)

    def drain(self) -> None:
        """Send every reader back to the gateway, then stop listening."""
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()

    async def _listen(self, listen: str, tenants: Tenants, tls: Tls | None, limits: ClientLimits) -> str:
        """Serve at `listen`; returns the address."""
        manager, info, target, _ = self._served
        frontend = service.VerifyService(manager, info, target.text, tenants, limits)
        server, port = await service.start(frontend, listen, tls, self._readiness)
        self._servers.append(server)
        return join_host_port(host_port(listen)[0], port)

    async def _beat(self) -> Heartbeat:
        return heartbeat(self._manager, self._member.replica, *self._addresses)

    async def _drain(self) -> None:
        await self._readiness.set(False)  # first of all: gateways then choose other replicas
        self._manager.hand_over()
        with contextlib.suppress(TimeoutError):  # slow readers lose their streams, and reopen
            await asyncio.wait_for(self._manager.idle(), HAND_OVER_SECONDS)
        await asyncio.gather(*(server.stop(LAST_MESSAGES_SECONDS) for server in self._servers))


def heartbeat(manager: SessionManager, replica: str, address: str, inner: str) -> Heartbeat:
    """The current state of a server."""
    loop, memory = manager.loop, manager.loop.machine.target.memory
    cost, chunk = loop.machine.profile.cost, loop.machine.profile.max_step_tokens
    live = [session.sequence for session in loop.machine.sessions.values() if session.has_reader]
    # Expected seconds of a step with one token for each session and for a new one, and of one token of a long prompt.
    step_s = cost.verify_s(len(live) + 1, sum(map(len, live)), len(live) + 1)
    token_s = cost.verify_s(chunk, 0, 1) / chunk
    waiting = sum(sequence.uncomputed - 1 for sequence in live)
    return Heartbeat(
        replica=replica,
        address=address,
        at=loop.clock(),
        free_tokens=memory.free,
        prefix_size=memory.prefix_size,
        sessions=len(live),
        places=manager.limits.max_sessions,
        step_s=step_s,
        queue_s=(step_s if live else 0.0) + waiting * token_s,
        token_s=token_s,
        model_id=manager.model_id,
        fingerprint=manager.inputs.text.fingerprint,
        draining=manager.draining,
        prefixes=memory.prefixes(),
        inner=inner,
        answers=AnswerCounts(manager.stats.answers.now()).now(),  # a copy: it is pickled in another thread
    )
