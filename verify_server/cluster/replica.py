"""One replica of many: a whole server in its own thread, started by `scheduler/cluster/ray_runtime.py`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
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
from verify_server.start.command import client_limits, clients, describe, make_manager, run

HAND_OVER_SECONDS = 10.0  # time for readers to leave a draining replica; chosen
BEAT_SECONDS = 30.0  # time for the event loop to answer; then it counts as broken; chosen


class ReplicaAddresses(NamedTuple):
    """Where a replica listens, as HOST:PORT."""

    public: str  # for devices; with --proxy for gateways
    inner: str  # for gateways


def start(config: Mapping[str, Any], replica: str, host: str, key: bytes) -> ReplicaServer:
    """A server on `host`, its machine's address in the cluster; `config`: fields of `ServeConfig`.

    `replica` is its id, `key` the cluster's. Loads the target, which takes a while; raises the errors of
    `opensled serve`.
    """
    settings = ServeConfig(**config)
    logs.configure(settings.log_level, settings.log_json)
    return ReplicaServer(settings, replica, host, key)


def public_listen(config: ServeConfig, host: str) -> str:
    """The address at which a replica on the machine `host` listens for devices; "" = none, because of --proxy."""
    if config.proxy:
        return ""
    return join_host_port(host if config.ray_address else host_port(config.listen)[0], 0)


class ReplicaServer:
    """See `scheduler.cluster.supervisor.HostedServer`: called from the actor's threads, works in its own thread."""

    def __init__(self, config: ServeConfig, replica: str, host: str, key: bytes) -> None:
        self._config, self._replica, self._host, self._key = config, replica, host, key
        public = public_listen(config, host)
        tls, tenants = clients(config, public)
        target = ENGINES.get(config.engine)(config)
        signer = TokenSigner(time.time, TOKEN_SECONDS, key, replica)
        self._manager = make_manager(config, target, tenants, signer, derive_key(key, "prefix"))
        names = model_names(config.served_model_name)
        self._info, self._text = describe(self._manager, target, config.pad_frames, names), target.text
        self._readiness, self._servers = service.Readiness(), list[service.Server]()
        self._started: Future[tuple[asyncio.AbstractEventLoop, ReplicaAddresses]] = Future()
        threading.Thread(target=self._thread, args=(public, tls, tenants), name="server", daemon=True).start()
        self._loop, self.addresses = self._started.result()

    def heartbeat(self) -> Heartbeat:
        """The replica's state; raises an error if its server hangs or has ended."""
        return asyncio.run_coroutine_threadsafe(self._beat(), self._loop).result(BEAT_SECONDS)

    def drain(self) -> None:
        """Send every reader back to the gateway, then stop listening."""
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()

    def _thread(self, public: str, tls: Tls | None, tenants: Tenants) -> None:
        try:
            run(self._serve(public, tls, tenants))
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self, public: str, tls: Tls | None, tenants: Tenants) -> int:
        """Serve until the loop fails, which ends the replica."""
        await self._readiness.set(True)
        gateways = GatewayTenants(credentials=GatewayCredentials(self._key, time.time))
        limits = client_limits(self._config, self._manager)
        inner = await self._listen(join_host_port(self._host, 0), gateways, None, limits.from_gateways)
        outer = await self._listen(public, tenants, tls, limits) if public else inner
        addresses = ReplicaAddresses(outer, inner)
        self._started.set_result((asyncio.get_running_loop(), addresses))
        await self._manager.loop.run()
        return 1

    async def _listen(self, listen: str, tenants: Tenants, tls: Tls | None, limits: ClientLimits) -> str:
        """Serve at `listen`; returns the address."""
        frontend = service.VerifyService(self._manager, self._info, self._text, tenants, limits)
        server, port = await service.start(frontend, listen, tls, self._readiness)
        self._servers.append(server)
        return join_host_port(host_port(listen)[0], port)

    async def _beat(self) -> Heartbeat:
        return heartbeat(self._manager, self._replica, self.addresses)

    async def _drain(self) -> None:
        await self._readiness.set(False)  # first of all: gateways then choose other replicas
        self._manager.hand_over()
        with contextlib.suppress(TimeoutError):  # slow readers lose their streams, and reopen
            await asyncio.wait_for(self._manager.idle(), HAND_OVER_SECONDS)
        await asyncio.gather(*(server.stop(LAST_MESSAGES_SECONDS) for server in self._servers))


def heartbeat(manager: SessionManager, replica: str, addresses: ReplicaAddresses) -> Heartbeat:
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
        address=addresses.public,
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
        inner=addresses.inner,
        answers=AnswerCounts(manager.stats.answers.now()).now(),  # a copy: it is pickled in another thread
    )
