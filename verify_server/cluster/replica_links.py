"""A gateway's links to the replicas: which of them serve, their answers to calls, and streams to them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from opensled.core.errors import Unreachable
from opensled.net.outward import grpc_way
from opensled.wire import codec
from opensled.wire.padding import METADATA
from scheduler.cluster.placement import Directory, Heartbeat
from verify_server.access.signing import GatewayCredentials
from verify_server.front.stream_record import FRONTED

log = logging.getLogger(__name__)

# All chosen: a device notices no wait of 0.1 s.
FOLLOW_SECONDS = 0.1  # between two readings of the directory
RETRY_SECONDS = 0.1  # before the next health check of a replica that is gone
ASK_SECONDS = 10.0  # time limit of Describe and GetTokenizer
CONFIRM_SECONDS = 1.0  # time limit of a single health check

# Finds a silent machine within 15 s, if missing heartbeats do not tell earlier; service.py allows these pings.
_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),  # tokenizer.json of a 256k vocabulary
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
]

_SERVES = health_pb2.HealthCheckRequest(service=codec.SERVICE_NAME)


class LinkClosed(Unreachable):
    """A replica ended a call by an error, or the directory dropped it meanwhile; `status` is gRPC's."""

    def __init__(self, reason: str, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(reason)
        self.status = status


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """Raise LinkClosed where a call fails, or is cancelled because its channel was closed and not by its caller."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise LinkClosed(error.details() or "", error.code()) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise LinkClosed("the link to this replica was closed") from error


class ReplicaLink:
    """One channel to one replica. It watches the replica's health: it knows of a killed process at once, and of a
    draining one before that sends its readers away."""

    def __init__(self, address: str, credentials: GatewayCredentials, on_change: Callable[[], None]) -> None:
        self.serving = False
        self.streams = 0  # that are open
        self._credentials, self._on_change = credentials, on_change
        self._channel = grpc.aio.insecure_channel(address, options=[*_OPTIONS, *grpc_way(address)])
        self._replies: dict[str, bytes] = {}
        self._watching = asyncio.ensure_future(self._watch())

    async def ask(self, method: str, request: bytes) -> bytes:
        """The reply, as bytes, to a call with a constant answer; raises LinkClosed."""
        if method not in self._replies:
            call = self._channel.unary_unary(f"/{codec.SERVICE_NAME}/{method}")
            with calling():
                self._replies[method] = await call(request, timeout=ASK_SECONDS, metadata=self._metadata(""))
        return self._replies[method]

    def sequence(self, tenant: str, seconds: float | None, padded: bool, own: Any = None) -> Any:
        """A stream of raw bytes for a sequence of `tenant`; its time limit is `seconds`, None = none.

        `padded`: the device has asked for padding; `own`: the messages of a gateway that asks itself.
        """
        more = (*(METADATA if padded else ()), *(FRONTED if own else ()))
        method = self._channel.stream_stream(f"/{codec.SERVICE_NAME}/Sequence")
        call = method(own, timeout=seconds, metadata=(*self._metadata(tenant), *more))
        self.streams += 1
        call.add_done_callback(self._release_stream)
        return call

    async def confirm(self) -> bool:
        """Whether it serves now: its end may have reached the devices before this process."""
        health = health_pb2_grpc.HealthStub(self._channel)
        try:
            with calling():
                reply = await health.Check(_SERVES, timeout=CONFIRM_SECONDS)
        except LinkClosed:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._channel.close()

    def _release_stream(self, call: Any) -> None:
        self.streams -= 1

    def _metadata(self, tenant: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", self._credentials.header(tenant)),)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._watch_once()
            self._set(False)
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch_once(self) -> None:
        """Until it does not serve; then end the call, because a stopping server would wait for it."""
        call = health_pb2_grpc.HealthStub(self._channel).Watch(_SERVES, wait_for_ready=True)
        try:
            async for reply in call:
                self._set(reply.status == health_pb2.HealthCheckResponse.SERVING)
                if not self.serving:
                    return
        finally:
            call.cancel()

    def _set(self, serving: bool) -> None:
        if serving != self.serving:
            self.serving = serving
            self._on_change()


class ReplicaLinks:
    """A link to each replica of the directory, and to each one that left it but still has streams."""

    def __init__(
        self, directory: Directory, credentials: GatewayCredentials, on_change: Callable[[], None]
    ) -> None:
        """Calls `on_change` when a replica begins or stops to serve."""
        self._directory, self._credentials, self._on_change = directory, credentials, on_change
        self._links: dict[tuple[str, str], ReplicaLink] = {}
        self._known: set[tuple[str, str]] = set()
        self._leaving: set[asyncio.Future[None]] = set()
        self._following = asyncio.ensure_future(self._follow())

    def serving(self) -> Sequence[Heartbeat]:
        """The replicas that can be reached and admit sequences."""
        beats = self._directory.replicas()
        return [beat for beat in beats if (link := self._links.get(_name(beat))) and link.serving]

    def of(self, beat: Heartbeat) -> ReplicaLink:
        """Raises LinkClosed if there is no link any more."""
        try:
            return self._links[_name(beat)]
        except KeyError:
            raise LinkClosed(f"there is no link to {beat.replica} any more") from None

    async def confirm(self, beat: Heartbeat) -> bool:
        """Whether the replica serves now and still has its link."""
        link = self.of(beat)
        return await link.confirm() and self._links.get(_name(beat)) is link

    async def close(self) -> None:
        self._following.cancel()
        closing = [link.close() for link in self._links.values()]
        await asyncio.gather(self._following, *self._leaving, *closing, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            self._update()
            await asyncio.sleep(FOLLOW_SECONDS)

    def _update(self) -> None:
        """Follow the directory. A replica without heartbeats gets no new sequences, but its streams may go on."""
        known = {_name(beat) for beat in self._directory.replicas()}
        for name in known - self._links.keys():
            self._links[name] = ReplicaLink(name[1], self._credentials, self._on_change)
        for name in self._links.keys() - known:
            link = self._links[name]
            if not link.serving or not link.streams:
                self._drop(name)
        if known != self._known:
            self._known = known
            self._on_change()

    def _drop(self, name: tuple[str, str]) -> None:
        log.info("replica %s is gone", name[0])
        leaving = asyncio.ensure_future(self._links.pop(name).close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


def _name(beat: Heartbeat) -> tuple[str, str]:
    return beat.replica, beat.inner or beat.address
