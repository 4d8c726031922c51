"""The one address of many replicas: answers `Open` with the address of the replica that serves it, or with --proxy
passes the stream through to that replica, byte for byte.

A gateway holds no state that is needed: the directory knows the replicas, and a device has all it needs to continue,
with its resume token. So gateways can be restarted, and there may be several.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from opensled.core.errors import Overloaded, ProtocolError, Unreachable
from opensled.core.messages import Failure, Moved, Open, ServerMessage
from opensled.metrics.answer_counts import AnswerCounts
from opensled.net.old_connection import over_old_connection
from opensled.net.probes import DRAINING
from opensled.wire import codec
from scheduler.cluster.placement import Directory, Heartbeat
from verify_server.access.byte_stream import ByteStream, admit_call, client_of, run_stream
from verify_server.access.client_limits import ClientLimits
from verify_server.access.clients import Client, Clients, StreamAccount
from verify_server.access.security import Tenants, Tls
from verify_server.access.signing import TOKEN_SECONDS, UNBEGUN, GatewayCredentials, TokenSigner, derive_key
from verify_server.cluster.replica_links import LinkClosed, ReplicaLinks, calling
from verify_server.cluster.replica_router import ReplicaRouter
from verify_server.front import service
from verify_server.front.hand_out import SILENT_S, HandOut, hand_out_nothing
from verify_server.front.session_stream import failure_of
from verify_server.options.serve_config import ServeConfig
from verify_server.start.command import client_limits

log = logging.getLogger(__name__)

NO_REPLICA = "no replica serves at the moment; try again"
CONSTANT_CALLS = ("Describe", "GetTokenizer")  # all replicas answer them alike
MAX_STREAMS = 4096  # of one tenant at the same time, without tenant-sessions; chosen: of many replicas
MakeHandOut = Callable[[Counter[str]], HandOut]

LINGER = 60.0  # seconds for which a reader may be silent, as at a replica
CLOSE_SECONDS = 0.5  # for calls that are no sequences, such as the last message to health watchers; chosen

# Status codes that a replica's stream ends with but whose meaning would mislead the device: it gets UNAVAILABLE.
_UNAVAILABLE = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,  # gRPC's own, if it writes while the replica dies
    grpc.StatusCode.UNAUTHENTICATED,  # the clocks of the cluster differ
}


@dataclass
class GatewayStats:
    """What a gateway has done since its start."""

    placed: Counter[str] = field(default_factory=Counter)  # sequences, by replica
    resumed: int = 0  # of them, sequences that had begun before
    refused: Counter[str] = field(default_factory=Counter)  # by code
    lost: int = 0  # streams that their replica ended; with --proxy only
    limited: Counter[str] = field(default_factory=Counter)  # times that a client met a limit, by limit
    answers: AnswerCounts = field(default_factory=AnswerCounts)  # over HTTP


class Gateway:
    """The calls of proto/opensled/v1/verify.proto, as bytes; decodes only the first message of a stream."""

    def __init__(
        self,
        directory: Directory,
        tenants: Tenants,
        key: bytes,
        *,
        proxy: bool,
        limits: ClientLimits = ClientLimits(),
        hand_out: MakeHandOut,
    ) -> None:
        """`key`: the cluster's; `proxy`: pass streams through; `hand_out`: of drafts, by this gateway itself;
        told how often a limit was met.

        Needs a running event loop."""
        self.tenants, self.stats = tenants, GatewayStats()
        self._drafts = hand_out(self.stats.limited)
        self.clients = Clients(limits, tenants, MAX_STREAMS, self.stats.limited, time.monotonic)
        self._proxy, self.draining = proxy, False
        self._changed = asyncio.Event()
        self._handlers: set[asyncio.Task[Any]] = set()  # of sequences
        self.links = ReplicaLinks(directory, GatewayCredentials(key, time.time), self._changed.set)
        self._signer = TokenSigner(time.time, TOKEN_SECONDS, key)
        self._router = ReplicaRouter(self.links.serving, self._signer, derive_key(key, "prefix"))

    def add_to(self, server: service.Server) -> None:
        """Take the calls that arrive at `server`."""
        describe, tokenizer = (partial(self._ask, name) for name in CONSTANT_CALLS)
        service.take_calls(server, describe, tokenizer, self._sequence, self._draft)

    async def report(self, readiness: service.Readiness) -> None:
        """Report whether a replica serves, whenever that changes; until cancelled."""
        while True:
            self._changed.clear()
            await readiness.set(bool(self.links.serving()) and not self.draining)
            await self._changed.wait()

    def drain(self) -> None:
        """Say that this gateway ends, and take no new sequence."""
        self.draining = True
        self._changed.set()

    async def idle(self) -> None:
        """Until no sequence is running here, to the last byte of its status."""
        while self._handlers:
            await asyncio.wait(self._handlers)

    async def close(self) -> None:
        await self.links.close()

    async def _ask(self, method: str, request: bytes, context: Any) -> bytes:
        """The answer of any replica."""
        await admit_call(context, self.clients, await self._client(context))
        try:
            return await self.ask(method, request)
        except Unreachable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise

    async def ask(self, method: str, request: bytes) -> bytes:
        """The answer of any replica: all serve the same model. Raises Unreachable if none serves."""
        for beat in self.links.serving():
            # If this one has just stopped, the next one answers
            with contextlib.suppress(LinkClosed):
                return await self.links.of(beat).ask(method, request)
        raise Unreachable(NO_REPLICA)

    @property
    def unready(self) -> str:
        """Why no new sequence finds a replica; "" = one does."""
        if self.draining:
            return DRAINING
        return "" if self.links.serving() else NO_REPLICA

    async def _client(self, context: Any) -> Client:
        return await client_of(context, self.tenants, self.clients, self.stats.refused)

    async def answer(
        self, tenant: str, opening: Open, account: StreamAccount
    ) -> AsyncGenerator[ServerMessage, None]:
        """See `Sequences.answer`. A replica reads the prompt."""
        self._count_in()
        try:
            beat = await self._admit(opening, tenant)
        except Exception as error:
            yield self._refusal(error)
            return
        call = self.links.of(beat).sequence(tenant, None, False, (codec.client_bytes(opening),))
        async with aclosing(self._replies(beat, call)) as replies:
            async for message in replies:
                yield codec.server_message(message)

    async def _sequence(self, requests: Any, context: Any) -> None:
        self._count_in()
        client = await self._client(context)
        await run_stream(self.clients, client, context, LINGER, self._serve)

    async def _draft(self, requests: Any, context: Any) -> None:
        client = await self._client(context)
        await run_stream(self.clients, client, context, SILENT_S, self._drafts)

    async def _serve(self, stream: ByteStream) -> None:
        try:
            first = await stream.read()
            if first is None:
                return
            message = _opening(first)
            beat = await self._admit(message, stream.client.tenant)
        except Exception as error:
            await stream.write(codec.server_bytes(self._refusal(error)))
            return
        if self._proxy:
            await self._forward(first, beat, stream)
        else:
            token = self._token(message, beat, stream.client.tenant)
            await stream.write(codec.server_bytes(Moved(beat.address, token)))

    async def _admit(self, message: Open, tenant: str) -> Heartbeat:
        """The replica for a sequence, which is counted there."""
        # An answer under way may need another replica.
        if self.draining and not message.resume_token and not over_old_connection():
            raise Overloaded("the server is shutting down; try again", retry_after=1.0)
        beat = await self._place(message, tenant)
        self.stats.placed[beat.replica] += 1
        self.stats.resumed += bool(message.committed or message.resume_token)
        return beat

    def _refusal(self, error: Exception) -> Failure:
        failure = failure_of(error)
        self.stats.refused[failure.code] += 1
        return failure

    def _count_in(self) -> None:
        """Count this task, which serves one call or answer, as a sequence until it ends."""
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)

    async def _place(self, message: Open, tenant: str) -> Heartbeat:
        """A replica for a sequence. The replica that holds its session must confirm that it serves: most devices come
        back because it has just died."""
        beat = self._router.place(message, tenant)
        if self._is_home(beat, message, tenant) and not await self.links.confirm(beat):
            return self._router.place(message, tenant)  # as for a device that comes back once more
        return beat

    def _is_home(self, beat: Heartbeat, message: Open, tenant: str) -> bool:
        """Whether the device's own token names this replica."""
        token = message.resume_token
        return bool(token) and self._signer.home_of(token, tenant)[0] == beat.replica

    def _token(self, message: Open, beat: Heartbeat, tenant: str) -> bytes:
        """A token that names the replica; none if the device's own token names it."""
        known = self._is_home(beat, message, tenant)
        return b"" if known else self._signer.sign(UNBEGUN, tenant, beat.replica)

    async def _forward(self, first: bytes, beat: Heartbeat, stream: ByteStream) -> None:
        """Forward both ways until the replica or the device ends; a device whose replica is lost reopens."""
        call = self.links.of(beat).sequence(stream.client.tenant, stream.seconds, stream.padded)
        sending = asyncio.ensure_future(_send(first, stream, call))
        try:
            async with aclosing(self._replies(beat, call)) as replies:
                async for message in replies:
                    await stream.write(message)
        except LinkClosed as lost:
            await stream.abort(lost.status, str(lost))
        finally:
            sending.cancel()

    async def _replies(self, beat: Heartbeat, call: Any) -> AsyncGenerator[bytes, None]:
        """The messages of a replica; the call ends with them. Raises LinkClosed."""
        try:
            while (message := await _next(call)) is not grpc.aio.EOF:
                yield message
        except LinkClosed as lost:
            self.stats.lost += 1
            told = {"replica": beat.replica, "code": lost.status.name}
            log.info("a replica's stream is lost: %s", lost, extra=told)
            status = grpc.StatusCode.UNAVAILABLE if lost.status in _UNAVAILABLE else lost.status
            raise LinkClosed(f"the replica ended the stream: {lost}", status) from lost
        finally:
            call.cancel()


async def _next(call: Any) -> Any:
    """The next message of the replica, as bytes or EOF; raises LinkClosed."""
    with calling():
        return await call.read()


async def _send(first: bytes, stream: ByteStream, call: Any) -> None:
    """Forward the device's messages to the replica."""
    message: bytes | None = first
    # The reading side reports how the call ended.
    with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
        while message is not None:
            await call.write(message)
            message = await stream.read()
        await call.done_writing()


def _opening(first: bytes) -> Open:
    """The first message of a stream; raises InvalidRequest, Unsupported or ProtocolError."""
    message = service.client_message(first)
    if not isinstance(message, Open):
        raise ProtocolError("the first message of a stream must be Open")
    return message


@dataclass
class GatewayServer:
    """A gateway that listens."""

    gateway: Gateway
    port: int
    server: service.Server
    readiness: service.Readiness
    _reporting: asyncio.Future[None]

    async def stop(self, grace: float | None = None) -> None:
        """Stop; forwarded streams have `grace` seconds to end by themselves."""
        self._reporting.cancel()
        await asyncio.gather(self._reporting, return_exceptions=True)
        await self.readiness.set(False)
        if grace is not None:
            await self._drain(grace)
            grace = min(grace, CLOSE_SECONDS)  # health watchers would stay for ever
        await self.server.stop(grace)
        await self.gateway.close()

    async def _drain(self, grace: float) -> None:
        """Admit no call, and wait until no sequence is running, for `grace` seconds at most."""
        self.gateway.draining = True
        # Must not be cancelled: that cancels gRPC's own future
        closing = asyncio.ensure_future(self.server.stop(grace))
        idle = asyncio.ensure_future(self.gateway.idle())
        try:
            await asyncio.wait({closing, idle}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()


async def start(
    directory: Directory,
    config: ServeConfig,
    tenants: Tenants,
    tls: Tls | None,
    key: bytes,
    hand_out: MakeHandOut = lambda met: hand_out_nothing,
) -> GatewayServer:
    """Listen at the address of `config` for the replicas of `directory`, which share `key`.

    The gateway's health is *serving* while one replica serves. Raises OpenSledError if the address is taken.
    """
    gateway = Gateway(
        directory, tenants, key, proxy=config.proxy, limits=client_limits(config), hand_out=hand_out
    )
    readiness = service.Readiness()
    reporting = asyncio.ensure_future(gateway.report(readiness))
    try:
        server, port = await service.start(gateway, config.listen, tls, readiness)
    except BaseException:
        reporting.cancel()
        await gateway.close()
        raise
    return GatewayServer(gateway, port, server, readiness, reporting)
