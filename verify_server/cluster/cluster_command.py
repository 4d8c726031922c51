"""`opensled serve --replicas N`: replicas on Ray, and this process as the gateway in front of them."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.handout.hand_out import hand_out_of
from home.desk.upkeep import home_kept
from hw_profiles.detect import allowed_cpus
from opensled.core.errors import EngineError, OpenSledError, UsageError
from opensled.core.files import user_path
from opensled.models.store import known_models
from opensled.net.address import is_wildcard
from opensled.process import notify
from opensled.process.ending import leave, outlasting_terminal
from opensled.process.logs import show_ready, tell
from scheduler.cluster import ray_guard
from scheduler.cluster.directory import POLL
from scheduler.cluster.head_watch import ray_lost
from scheduler.cluster.supervisor import ClusterSpec
from verify_server.access.security import Tenants, Tls
from verify_server.cluster import gateway
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.front.draining import LAST_MESSAGES_SECONDS, last_bytes, longest_end, until_first
from verify_server.options.serve_config import ServeConfig
from verify_server.start.command import (
    RENEW,
    announcing,
    arriving_signals,
    client_limits,
    clients,
    run,
    wait_for_second_signal,
)
from verify_server.start.start_ports import Ports, taken_ports, while_loading
from verify_server.start.startup import next_command

if TYPE_CHECKING:
    from scheduler.cluster.ray_runtime import Cluster
    from verify_server.front.http_front import HttpFront

log = logging.getLogger(__name__)

REPLICA, VLLM = "verify_server.cluster.replica:start", "vllm_plugin.replica:start"
STOP_SECONDS = 45.0  # for replicas of this process's own Ray, and for that, to end; chosen
FILES = ("tls_cert", "tls_key", "tls_client_ca", "tokens")
GATEWAYS = (  # options that are no replica's
    *("http", "http_wait", "lenient", "cors_origin", "operator_keys"),
    *("metrics", "insecure_metrics", "json", "announce", "drafts"),
)


def serve_cluster(config: ServeConfig) -> int:
    """Serve until SIGTERM. SIGHUP replaces the replicas one after the other; the others go on serving."""
    tls, tenants = clients(config, config.listen)
    # Devices are sent to the replicas' addresses: the host of --listen with other ports.
    if is_wildcard(config.listen) and not config.ray_address and not config.proxy:
        raise UsageError(
            f"--listen {config.listen} is not an address that devices can reach; name one, or add --proxy"
        )
    with _ray(config):
        from scheduler.cluster.ray_runtime import Cluster

        cluster = Cluster(_spec(config) if config.replicas else None)
        return run(_serve(config, cluster, tenants, tls))


@contextmanager
def _ray(config: ServeConfig) -> Iterator[None]:
    """The Ray that runs the replicas: the one at --ray-address, or one that this process starts."""
    ray_guard.prepare(config.ray_address)
    from scheduler.cluster import ray_runtime  # imports ray, which reads its environment

    if config.ray_address:
        with ray_runtime.joined_ray(config.ray_address, ray_guard.networks(config.ray_network)):
            yield
    else:
        threads = processes(config) * max(1, config.threads)
        with ExitStack() as stack:
            with outlasting_terminal():
                stack.enter_context(ray_runtime.own_ray(max(len(allowed_cpus()), config.replicas * threads)))
            yield


def _spec(config: ServeConfig) -> ClusterSpec:
    """The configured replicas; each process of each gets as many threads as CPUs. Raises UsageError if they do not fit.

    A replica with all its processes is one actor: so Ray gives it CPUs and GPUs of one machine, all of them or none.
    """
    each = processes(config)
    share = 1 if config.ray_address else max(1, len(allowed_cpus()) // (config.replicas * each))
    return ClusterSpec(
        count=config.replicas,
        start=VLLM if config.engine == "vllm" else REPLICA,
        config=asdict(_replica_config(config)),
        cpus=(config.threads or share) * each,
        gpus=_gpus(config),
        networks=config.ray_network,
    )


def processes(config: ServeConfig) -> int:
    """How many processes compute one replica together. Raises UsageError."""
    if config.engine != "vllm":
        return 1
    from vllm_plugin import launch

    return launch.processes(config)


def _gpus(config: ServeConfig) -> float:
    """GPUs of each replica. On one machine all must fit; a cluster may get more machines later."""
    from scheduler.cluster.ray_runtime import gpus_there

    there, together = gpus_there(), processes(config)
    each = float(together) if together > 1 else config.replica_gpus
    if config.device == "cpu" or not there or not each:
        return 0.0
    if config.replica_gpus not in (1, each):
        raise UsageError(
            f"replica-gpus {config.replica_gpus:g}: each of the {together} processes of a replica takes one GPU; "
            "leave it out"
        )
    fitting = int(there) * int(1 / each) if each <= 1 else int(there / each)
    if config.replicas > fitting and not config.ray_address:
        raise UsageError(
            f"{config.replicas} replicas with {each:g} GPUs each do not fit on the {there:g} there are: at most "
            f"{fitting} do; lower --replicas or replica-gpus"
        )
    return each


def _replica_config(config: ServeConfig) -> ServeConfig:
    """The configuration of one replica: nothing of the gateway's, and absolute paths, because it starts in another
    folder."""
    names: dict[str, Any] = {
        name: str(Path(path).resolve()) for name in FILES if (path := getattr(config, name))
    }
    path = user_path(config.model)
    if config.model not in known_models() and path.exists():  # else it is a bundled name or a hub id
        names["model"] = str(path.resolve())
    return replace(config, **{name: getattr(ServeConfig, name) for name in GATEWAYS}, **names)


async def _serve(config: ServeConfig, cluster: Cluster, tenants: Tenants, tls: Tls | None) -> int:
    signals = arriving_signals(renews=True)
    stopping = asyncio.ensure_future(_stop_signal(signals, cluster))
    lost = asyncio.ensure_future(_end_without_ray(cluster.ports, signals))
    try:
        async with taken_ports(config, client_limits(config)) as ports:
            address, starting = await while_loading(config, tls, cluster.directory.ready, stopping)
            if not starting.done():
                starting.cancel()
                return 0
            starting.result()
            served = replace(config, listen=address)
            await _listen(served, cluster, tenants, tls, ports, signals, stopping)
        if not config.ray_address and not lost.done():
            lost.cancel()  # Ray ends now because it shall
            await cluster.stop()
    finally:
        stopping.cancel()
        if lost.done() and not lost.cancelled():
            leave(EngineError.exit_code)  # a farewell to Ray would wait for what is gone
        lost.cancel()
    return 0


async def _end_without_ray(ports: Sequence[str], signals: asyncio.Queue[int]) -> None:
    """Drain as at SIGTERM once Ray is lost: replicas that are left end with it, and none comes back."""
    log.error(
        "nothing listens at %s any more, where Ray was: this cluster ends with it. Start it again; devices go on where "
        "they were",
        await ray_lost(ports),
    )
    signals.put_nowait(signal.SIGTERM)


async def _listen(
    config: ServeConfig,
    cluster: Cluster,
    tenants: Tenants,
    tls: Tls | None,
    ports: Ports,
    signals: asyncio.Queue[int],
    stopping: asyncio.Future[None],
) -> None:
    """Be the gateway until `stopping` is done; then admit no sequence any more."""
    server = await gateway.start(
        cluster.directory,
        config,
        tenants,
        tls,
        cluster.key,
        partial(hand_out_of, config, clock=time.monotonic),
    )
    watching = asyncio.ensure_future(cluster.directory.watch())
    ports.metrics.extend(gateway_metrics(server.gateway, cluster.directory))
    ports.probes.unready = lambda: server.gateway.unready
    async with _http(ports, server.gateway), home_kept(config), announcing(config), notify.announce():
        _tell_up(config, cluster)
        show_ready(config.listen)
        await stopping
        notify.stopping(longest_end(config.drain) + STOP_SECONDS)
        await _drain(config, server, cluster, ports, signals)
    watching.cancel()


def _tell_up(config: ServeConfig, cluster: Cluster) -> None:
    """How many replicas are up, of which model, and the next command."""
    beats = cluster.directory.replicas()
    words = "replica is" if len(beats) == 1 else "replicas are"
    tell(f"{len(beats)} {words} up, serving {', '.join({beat.model_id for beat in beats})}")
    tell(f"next: {next_command(config, config.listen)}")


@asynccontextmanager
async def _http(ports: Ports, served: gateway.Gateway) -> AsyncIterator[None]:
    """The HTTP API, if it is wanted."""
    if ports.http is None:
        yield
        return
    from verify_server.cluster.gateway_sequences import GatewaySequences
    from verify_server.front.fleet import GatewayView

    async with GatewaySequences(served).learning() as sequences:
        ports.http.open(sequences, ports.metrics, GatewayView(ports.metrics))
        ports.probes.unready = lambda: sequences.unready  # only then its API answers, too
        yield


async def _drain(
    config: ServeConfig,
    server: gateway.GatewayServer,
    cluster: Cluster,
    ports: Ports,
    signals: asyncio.Queue[int],
) -> None:
    """Let running sequences finish; a second signal ends them.

    With --ray-address the replicas stay with what they serve: those who stream through this gateway are waited for.
    """
    server.gateway.drain()
    # Clients connect anew, elsewhere. Never cancelled: that would cancel gRPC's own future.
    closing = asyncio.ensure_future(server.server.stop(config.drain + LAST_MESSAGES_SECONDS))
    ended = _finish_sequences(config, server, cluster, ports.http)
    if not await until_first(ended, wait_for_second_signal(signals), config.drain) and ports.http:
        ports.http.ending.set()  # before the replicas are out of reach
    await asyncio.gather(server.stop(LAST_MESSAGES_SECONDS), last_bytes(ports.http), closing)


async def _finish_sequences(
    config: ServeConfig, server: gateway.GatewayServer, cluster: Cluster, http: HttpFront | None
) -> None:
    """Until no sequence is under way, nor comes any more."""
    if http:
        http.server.send_away()
        await http.over(server.gateway.idle)
    await server.stop(config.drain)
    if not config.ray_address:
        await _idle(cluster)


async def _idle(cluster: Cluster) -> None:
    """Until no replica has running sequences, by heartbeats that count all admitted ones."""
    since = time.monotonic()
    while any(beat.sessions or beat.at < since for beat in cluster.directory.replicas()):
        await asyncio.sleep(POLL)


async def _stop_signal(signals: asyncio.Queue[int], cluster: Cluster) -> None:
    """Until a signal that ends the gateway; RENEW renews the replicas meanwhile."""
    renewing: set[asyncio.Task[None]] = set()
    while await signals.get() == RENEW:
        if not renewing:
            task = asyncio.ensure_future(_renew(cluster))
            renewing.add(task)
            task.add_done_callback(renewing.discard)
    for task in renewing:
        task.cancel()


async def _renew(cluster: Cluster) -> None:
    log.warning("replacing the replicas one after the other")
    try:
        await cluster.restart()
    except OpenSledError as error:
        log.error("%s", error)
    else:
        log.warning("all replicas are new")
