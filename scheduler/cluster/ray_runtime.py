"""Many replicas on Ray, which is a control plane only: no prompt and no token goes through it, and it may be away.

    gateway's process     Cluster     asks for the state four times a second, and places from its copy of it
    actor `scheduler`     Scheduler   keeps the wanted number of replicas alive, knows them by their heartbeats
    actors `replica-N`    Replica     own their device and host their own server

All actors are detached and named. An actor that dies is started again, by Ray or by the scheduler.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from opensled.core.errors import EngineError, OpenSledError, Unreachable, UsageError
from opensled.net.address import join_host_port
from opensled.process.registry import Registry
from scheduler.cluster import ray_guard
from scheduler.cluster.directory import WatchedDirectory
from scheduler.cluster.leftovers import end_leftovers, own_folder
from scheduler.cluster.placement import Heartbeat
from scheduler.cluster.supervisor import ClusterSpec, ClusterState, HostedServer, ReplicaSupervisor

log = logging.getLogger(__name__)

NAMESPACE = "opensled"
SCHEDULER = "scheduler"
KEY_BYTES = 32  # of the key that signs resume tokens: SHA-256's own size
BEAT = 0.5  # seconds between the heartbeats of a replica (chosen: a dead one is noticed within STALE, six of them)
OBJECT_STORE = 80_000_000  # bytes; nothing of ours goes there, and Ray accepts no less
_QUIET: dict[str, Any] = {
    "namespace": NAMESPACE,
    "log_to_driver": False,
    "configure_logging": False,
    "logging_level": logging.ERROR,
}

STARTS = Registry("replica", {})


@contextlib.contextmanager
def own_ray(cpus: int) -> Iterator[None]:
    """A Ray of this process alone, with so many CPUs, on loopback; it ends with the block, and with the process.

    What outlives a process that is killed ends when the next one starts.
    """
    end_leftovers()
    with own_folder() as folder:
        started = ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE,
            _temp_dir=str(folder),
            **_QUIET,
        )
        try:
            ray_guard.require_private(started.address_info["node_ip_address"], machine_addresses(), ())
            _require_no_dashboard(started.dashboard_url)
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def joined_ray(address: str, networks: Sequence[ray_guard.Network]) -> Iterator[None]:
    """The Ray cluster at `address`, of which this machine is a node. Raises UsageError if it is open to others."""
    ray_guard.require_token(address)
    try:
        joined = ray.init(address=address, **_QUIET)
    except (ConnectionError, RuntimeError) as error:
        raise Unreachable(f"this machine is not a node of the Ray cluster at {address}: {error}") from error
    try:
        ray_guard.require_private(joined.address_info["node_ip_address"], machine_addresses(), networks)
        for node in ray.nodes():
            if node["Alive"]:  # Ray lists those that left as well
                ray_guard.require_private(node["NodeManagerAddress"], (), networks)
        _require_no_dashboard(joined.dashboard_url)
        yield
    finally:
        ray.shutdown()


def _require_no_dashboard(url: str) -> None:
    if url:
        raise UsageError(f"Ray's dashboard is on at {url}; start Ray with --include-dashboard=false")


def machine_addresses() -> list[str]:
    """Every IP address of this machine."""
    import psutil  # Ray brings it along, and makes it known only when it is imported

    kinds = (socket.AF_INET, socket.AF_INET6)
    cards = psutil.net_if_addrs().values()
    return [one.address.partition("%")[0] for card in cards for one in card if one.family in kinds]


def _ports() -> list[str]:
    """HOST:PORT of Ray's head, and of the node of this machine: without one of them there is no cluster."""
    context = ray.get_runtime_context()
    [node] = [each for each in ray.nodes() if each["NodeID"] == context.get_node_id()]
    return [context.gcs_address, join_host_port(node["NodeManagerAddress"], node["NodeManagerPort"])]


def gpus_there() -> float:
    """GPUs that the cluster knows of."""
    return float(ray.cluster_resources().get("GPU", 0.0))


class Replica:
    """The actor around one server: sends its heartbeats, and dies, to be started again, when it is broken."""

    def __init__(self, name: str, spec: ClusterSpec, key: bytes) -> None:
        self._name = name
        # New with every start: this process knows no session of an earlier one
        replica = f"{name}-{secrets.token_hex(3)}"
        try:
            host = ray.util.get_node_ip_address()
            ray_guard.require_private(host, machine_addresses(), ray_guard.networks(spec.networks))
            self._server: HostedServer = STARTS.get(spec.start)(spec.config, replica, host, key)
        except Exception as error:
            _report(name, error)
            raise
        threading.Thread(target=self._beat, name="heartbeats", daemon=True).start()

    async def wait_for_end(self) -> None:
        """Never returns: a caller that waits for it learns at once when this process dies."""
        await asyncio.get_running_loop().create_future()

    async def drain(self) -> None:
        await asyncio.to_thread(self._server.drain)

    def _beat(self) -> None:
        while True:
            try:
                beat = self._server.heartbeat()
            except Exception:
                log.exception("the server of %s is broken", self._name)
                os._exit(1)
            with contextlib.suppress(ValueError, RayError):  # while there is no scheduler
                _scheduler().beat.remote(self._name, beat)
            time.sleep(BEAT)


def _report(name: str, error: Exception) -> None:
    """Tell the scheduler why a replica does not start."""
    told = error if isinstance(error, OpenSledError) else EngineError(f"{type(error).__name__}: {error}")
    with contextlib.suppress(ValueError, RayError):  # while there is none
        ray.get(_scheduler().report_failure.remote(name, told.code, str(told)))


class Scheduler:
    """The actor around a supervisor. Every message makes it tend its replicas, so a restarted one goes on by itself."""

    def __init__(self, spec: ClusterSpec, key: bytes) -> None:
        self._spec, self._key = spec, key
        self._supervisor = ReplicaSupervisor(spec, self, time.monotonic)

    async def key(self) -> bytes:
        return self._key

    async def spec(self) -> ClusterSpec:
        return self._spec

    async def state(self) -> ClusterState:
        self._supervisor.tend()
        return self._supervisor.state()

    async def beat(self, name: str, beat: Heartbeat) -> None:
        self._supervisor.tend()
        self._supervisor.beat(name, beat)

    async def report_failure(self, name: str, code: str, reason: str) -> None:
        self._supervisor.report_failure(name, code, reason)

    async def restart(self) -> None:
        await self._supervisor.restart()

    async def stop(self) -> None:
        await self._supervisor.stop()

    async def lifetime(self, name: str) -> None:
        spec = self._spec
        options = _actor_options(name, num_cpus=spec.cpus, num_gpus=spec.gpus, scheduling_strategy="SPREAD")
        with contextlib.suppress(RayError):
            await ray.remote(Replica).options(**options).remote(name, spec, self._key).wait_for_end.remote()

    async def retire(self, name: str, serves: bool) -> None:
        with contextlib.suppress(ValueError, RayError):  # it is gone already
            handle = ray.get_actor(name, NAMESPACE)
            if serves:  # one that loads would answer only after that
                with contextlib.suppress(RayError):
                    await handle.drain.remote()
            ray.kill(handle, no_restart=True)


class Cluster:
    """A gateway's hold on its replicas."""

    def __init__(self, spec: ClusterSpec | None) -> None:
        """Find or start the scheduler; without a `spec`, with the replicas that are there. Raises UsageError."""
        self._scheduler, self.key = _ensure_scheduler(spec) if spec else _find_scheduler()
        self.ports = _ports()
        self.directory = WatchedDirectory(self._state, time.monotonic)

    async def restart(self) -> None:
        """Replace the replicas one after the other, so that the others go on; EngineError if one does not come back."""
        try:
            await self._scheduler.restart.remote()
        except RayError as error:
            raise EngineError(f"not all replicas were renewed: {error}") from error

    async def stop(self) -> None:
        """End every replica and the scheduler."""
        with contextlib.suppress(RayError):
            await self._scheduler.stop.remote()
        ray.kill(self._scheduler, no_restart=True)

    async def _state(self) -> ClusterState:
        try:
            state: ClusterState = await self._scheduler.state.remote()
        except RayError as error:
            with contextlib.suppress(ValueError, RayError):
                self._scheduler = _scheduler()  # it may have been replaced by one with another spec
            raise Unreachable(f"no scheduler: {type(error).__name__}") from error
        return state


def _actor_options(name: str, **options: Any) -> dict[str, Any]:
    """Options of an actor that outlives its maker; an actor of that name that exists is taken instead."""
    kept = {"lifetime": "detached", "max_restarts": -1, "get_if_exists": True}
    return {"name": name, "namespace": NAMESPACE} | kept | options


def _scheduler() -> ActorHandle:
    """Raises ValueError where there is none."""
    return ray.get_actor(SCHEDULER, NAMESPACE)


def _find_scheduler() -> tuple[ActorHandle, bytes]:
    try:
        handle = _scheduler()
    except ValueError:
        raise UsageError("that Ray cluster has no replicas yet; add --replicas N") from None
    return handle, ray.get(handle.key.remote())


def _ensure_scheduler(spec: ClusterSpec) -> tuple[ActorHandle, bytes]:
    """The scheduler of this `spec`: the present one, or a new one; resume tokens stay valid in any case."""
    key = secrets.token_bytes(KEY_BYTES)
    with contextlib.suppress(ValueError, RayActorError):
        handle = _scheduler()
        key = ray.get(handle.key.remote())
        if ray.get(handle.spec.remote()) == spec:
            return handle, key
        ray.kill(handle, no_restart=True)  # the replicas live on, and report to the next one
    return _make_scheduler(spec, key)


def _make_scheduler(spec: ClusterSpec, key: bytes) -> tuple[ActorHandle, bytes]:
    """A new scheduler, or the one that another gateway made meanwhile, with its own key."""
    options = _actor_options(SCHEDULER, num_cpus=0)
    while True:
        handle = ray.remote(Scheduler).options(**options).remote(spec, key)
        try:
            return handle, ray.get(handle.key.remote())
        except RayActorError:  # the name still belongs to an actor that has just ended
            time.sleep(BEAT)
