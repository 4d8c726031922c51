"""Replicas and gateways in this process: real gRPC on real ports, fake targets, and a directory that is a list."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from adapt.handout.hand_out import hand_out_of
from hw_profiles.step_cost import HardwareProfile
from opensled.metrics.answer_counts import AnswerCounts
from scheduler.cluster.placement import Heartbeat
from scheduler.fcfs import Fcfs
from tests.fake_target import _Text
from tests.fakes import FakeEngine, FakeText
from tests.http_serving import CONFIG
from tests.loops import cancelled
from tests.rounds import looping
from tests.system import until
from verify_server.access.client_limits import ClientLimits
from verify_server.access.security import Tenants
from verify_server.access.signing import GatewayCredentials, GatewayTenants, TokenSigner, derive_key
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.cluster import gateway
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.cluster.gateway_sequences import GatewaySequences
from verify_server.front import service
from verify_server.front.fleet import GatewayView
from verify_server.front.http_front import http_front
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start.command import describe

KEY = b"the cluster's key"


class Replica:
    """One server with an address for devices and one for gateways, as `verify_server.cluster.replica` runs it."""

    def __init__(self, name, tenants=Tenants(), tls=None, places=64, key=KEY, text=None):
        target = ServedModel("fake", FakeEngine(num_blocks=2000), text or FakeText())
        prefix_key = derive_key(key, "prefix")
        self.name, self.key = name, key
        self.loop = looping(
            target.engine,
            Fcfs(float("inf")),
            HardwareProfile(64),
            time.monotonic,
            learns=True,
            prefix_key=prefix_key,
        )
        signer = TokenSigner(time.time, 3600, key, name)
        limits = SessionLimits(max_sessions=places, max_draft=8, linger=30.0, tenants=tenants)
        self.manager = SessionManager(self.loop, target, limits, signer)
        self._info, self._text, self._tenants, self._tls = (
            describe(self.manager, target),
            target.text,
            tenants,
            tls,
        )
        self.readiness = service.Readiness()
        self.calls = 0  # of Describe and GetTokenizer

    async def start(self):
        await self.readiness.set(True)
        outer = service.VerifyService(self.manager, self._info, self._text, self._tenants)
        clients = GatewayTenants(credentials=GatewayCredentials(self.key, time.time))
        inner = Counting(self.manager, self._info, self._text, clients, ClientLimits().from_gateways)
        inner.replica = self
        self.public, port = await service.start(outer, "127.0.0.1:0", self._tls, self.readiness)
        self.private, own = await service.start(inner, "127.0.0.1:0", None, self.readiness)
        self.address, self.inner = f"127.0.0.1:{port}", f"127.0.0.1:{own}"
        self._running = asyncio.ensure_future(self.loop.run())

    @property
    def servers(self):
        return self.public, self.private

    def heartbeat(self):
        """A second old, never stale and never draining: the gateway has to find out by itself."""
        sessions = sum(session.has_reader for session in self.manager.remembered)
        memory = self.loop.machine.target.memory
        return Heartbeat(
            self.name, self.address, time.monotonic() - 1, memory.free, memory.prefix_size, sessions,
            64, 0.01, 0.0, 0.001, "fake", self._text.fingerprint, False, memory.prefixes(), self.inner,
            AnswerCounts(self.manager.stats.answers.now()).now(),
        )  # fmt: skip

    async def drain(self):
        """As a replica does it that is to be replaced; nobody, not even a gateway, may keep it from ending."""
        await self.readiness.set(False)
        self.manager.hand_over()
        await asyncio.wait_for(self.stop(120), 30)

    async def stop(self, grace=None):
        """Without grace it is a death: every connection breaks at once."""
        await asyncio.gather(*(server.stop(grace) for server in self.servers))
        await cancelled(self._running)
        self.loop.close()


class Counting(service.VerifyService):
    async def Describe(self, request, context):
        self.replica.calls += 1
        return await super().Describe(request, context)

    async def GetTokenizer(self, request, context):
        self.replica.calls += 1
        return await super().GetTokenizer(request, context)


@dataclass
class Cluster:
    """Replicas, and one gateway that can be restarted."""

    config: ServeConfig
    tenants: Tenants
    tls: object = None
    key: bytes = KEY
    members: list[Replica] = field(default_factory=list)
    serving: gateway.GatewayServer | None = None

    def replicas(self):
        """It is its own directory."""
        return [replica.heartbeat() for replica in self.members]

    def __getitem__(self, name):
        return next(replica for replica in self.members if replica.name == name)

    @property
    def address(self):
        return f"127.0.0.1:{self.serving.port}"

    @property
    def seen(self):
        """Names of the replicas that the gateway would choose from."""
        return {beat.replica for beat in self.serving.gateway.links.serving()}

    async def add(self, name, **options):
        replica = Replica(name, self.tenants, self.tls, key=self.key, **options)
        await replica.start()
        self.members.append(replica)
        return replica

    async def open_gateway(self, port=0):
        config = replace(self.config, listen=f"127.0.0.1:{port}")
        self.serving = await gateway.start(
            self, config, self.tenants, self.tls, self.key, partial(hand_out_of, config, clock=time.monotonic)
        )

    async def restart_gateway(self):
        """On the same port, with nothing but the key."""
        port = self.serving.port
        await self.serving.stop()
        await self.open_gateway(port)

    async def all_seen(self):
        await until(lambda: self.seen == {replica.name for replica in self.members})


@asynccontextmanager
async def cluster(*names, proxy=False, tenants=Tenants(), tls=None, **options):
    """A gateway over these replicas, all of them known to it. `options`: of each `Replica`."""
    async with AsyncExitStack() as stack:
        one = Cluster(ServeConfig(proxy=proxy), tenants, tls)
        stack.push_async_callback(_stop, one)
        for name in names:
            await one.add(name, **options)
        await one.open_gateway()
        await one.all_seen()
        yield one


async def _stop(one):
    if one.serving is not None:
        await one.serving.stop()
    await asyncio.gather(*(replica.stop() for replica in one.members))


@asynccontextmanager
async def api(*names, config=CONFIG, **options):
    """Yields (cluster, HTTP address)."""
    async with cluster(*names, text=_Text(), **options) as one:
        sequences = GatewaySequences(one.serving.gateway)
        view = GatewayView(gateway_metrics(one.serving.gateway, one))
        async with sequences.learning(), http_front(config, sequences.clients.limits) as front:
            front.open(sequences, (), view)
            yield one, front.address


async def until_ready(client):
    for _ in range(500):
        if (await client.get("/readyz")).status_code == 200:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no replica became known")


NOW = 100.0


def beat(replica: str, **other) -> Heartbeat:
    usual = {
        "address": f"{replica}:1",
        "at": NOW,
        "free_tokens": 1600,
        "prefix_size": 16,
        "sessions": 0,
        "places": 8,
        "step_s": 0.01,
        "queue_s": 0.0,
        "token_s": 1e-3,
        "model_id": "tiny",
        "fingerprint": "f",
    }
    return Heartbeat(replica, **{**usual, **other})
