"""The gRPC front end of the server: carries messages, decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any, Protocol

import grpc

from opensled.core.bounds import MAX_POSITIONS
from opensled.core.errors import InvalidRequest, Loading, OpenSledError
from opensled.core.files import Identity
from opensled.core.messages import ClientMessage, ModelInfo, ServerMessage
from opensled.net.address import host_port, join_host_port
from opensled.wire import codec
from opensled.wire.padding import PADDING_REQUIRED
from verify_server.access.byte_stream import ByteStream, admit_call, client_of, run_stream
from verify_server.access.client_limits import ClientLimits
from verify_server.access.clients import Client, Clients
from verify_server.access.security import Tenants, Tls
from verify_server.admission.session_manager import SessionManager
from verify_server.front.hand_out import SILENT_S, HandOut, hand_out_nothing
from verify_server.front.session_stream import Ending, serve_stream
from verify_server.front.stream_record import StreamRecord, is_fronted
from verify_server.round.loaded_model import TextCodec

# Devices ping every 20 s to find dead links; gRPC's default answers that with GOAWAY too_many_pings. Times in ms.
_OPTIONS = [
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.server_handshake_timeout_ms", 20_000),  # of gRPC 120,000: half of a handshake is held as long
    ("grpc.so_reuseport", 0),  # a busy port is an error, not a second server
    # What a peer may send before it is read stays small: else gRPC lets it grow while the peer sends fast.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),
]

# Of a message whose parsing is not timed. Chosen: drafts have less, and take 0.1 ms at most.
CHEAP_BYTES = 256


Server = grpc.aio.Server


def options(limits: ClientLimits) -> list[tuple[str, int]]:
    """gRPC's options for a server whose clients have these limits."""
    found = [*_OPTIONS, ("grpc.max_receive_message_length", limits.message_bytes)]
    if limits.by_connection:
        found.append(("grpc.max_concurrent_streams", limits.streams))
    return found


class GrpcFrontend(Protocol):
    """What a gRPC server can serve: a `VerifyService` or a `Gateway`."""

    tenants: Tenants
    clients: Clients

    def add_to(self, server: grpc.aio.Server) -> None: ...


class VerifyService:
    """The calls of proto/opensled/v1/verify.proto, as bytes: a message's length counts before it is parsed."""

    def __init__(
        self,
        manager: SessionManager,
        info: ModelInfo,
        text: TextCodec,
        tenants: Tenants,
        limits: ClientLimits = ClientLimits(),
        drafts: HandOut = hand_out_nothing,
    ) -> None:
        """`drafts`: answers calls of `GetDraft`."""
        self._manager, self.tenants, self.info = manager, tenants, info
        self._info = codec.encode_info(info).SerializeToString()
        self._tokenizer = codec.tokenizer_reply(text.tokenizer_json, text.chat_template).SerializeToString()
        self.clients = Clients(
            limits, tenants, manager.limits.max_sessions, manager.stats.limited, manager.loop.clock
        )
        self._drafts = drafts

    async def Describe(self, request: bytes, context: Any) -> bytes:
        await admit_call(context, self.clients, await self._client(context))
        return self._info

    async def GetTokenizer(self, request: bytes, context: Any) -> bytes:
        await admit_call(context, self.clients, await self._client(context))
        return self._tokenizer

    async def Sequence(self, requests: Any, context: Any) -> None:
        client, linger = await self._client(context), self._manager.limits.linger
        serve = self.serve if is_fronted(context.invocation_metadata()) else self._serve_device
        await run_stream(self.clients, client, context, linger, serve)

    async def GetDraft(self, requests: Any, context: Any) -> None:
        await run_stream(self.clients, await self._client(context), context, SILENT_S, self._drafts)

    async def _serve_device(self, stream: ByteStream) -> None:
        """One that counts; an HTTP API counts its own answers."""
        record = StreamRecord(self._manager.stats.answers, stream.client.tenant)
        try:
            await self.serve(stream, record)
        except TimeoutError:
            record.late()
            raise
        finally:
            record.close()

    async def serve(self, stream: ByteStream, record: StreamRecord | None = None) -> None:
        """Serve one call of `Sequence` to its end; `record` hears of it."""
        positions = self._manager.sequence_limits.context_length
        lacks_padding = PADDING_REQUIRED in self.info.capabilities and not stream.padded

        async def receive() -> ClientMessage | Ending:
            data = await stream.read()
            if data is None:
                return Ending.HALF_CLOSED
            if lacks_padding:
                raise InvalidRequest(
                    "this server requires padded frames; the device must ask for them", "padding"
                )
            message = parse(data)
            if record is not None:
                record.add_incoming(message)
            return message

        def parse(data: bytes) -> ClientMessage:
            if len(data) <= CHEAP_BYTES:
                return client_message(data, positions)
            started = time.thread_time()
            try:
                return client_message(data, positions)
            finally:
                stream.account.charge(time.thread_time() - started)

        async def send(message: ServerMessage) -> None:
            if record is not None:
                record.add_outgoing(message)
            await stream.write(codec.server_bytes(message))

        await serve_stream(
            self._manager,
            stream.client.tenant,
            receive,
            send,
            stream.seconds,
            stream.account,
        )

    async def _client(self, context: Any) -> Client:
        return await client_of(context, self.tenants, self.clients, self._manager.stats.refused)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Take the calls that arrive at `server`."""
        take_calls(server, self.Describe, self.GetTokenizer, self.Sequence, self.GetDraft)


def take_calls(server: grpc.aio.Server, describe: Any, tokenizer: Any, sequence: Any, draft: Any) -> None:
    """Let these handlers of bytes answer the calls that arrive at `server`."""
    calls = {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "GetTokenizer": grpc.unary_unary_rpc_method_handler(tokenizer),
        "Sequence": grpc.stream_stream_rpc_method_handler(sequence),
        # One message, then a stream: the same on the wire, and a handler of streams may wait for its reader.
        "GetDraft": grpc.stream_stream_rpc_method_handler(draft),
    }
    logging.getLogger("grpc._cython.cygrpc").addFilter(_tells_more)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(codec.SERVICE_NAME, calls),))


def _tells_more(record: logging.LogRecord) -> bool:
    """False of a write to a call that its peer had just ended: no error of this server, and no traceback in its log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], grpc.aio.InternalError)


def client_message(data: bytes, positions: int = MAX_POSITIONS) -> ClientMessage:
    """The message that these bytes encode; `positions`: of the context. Raises InvalidRequest and Unsupported."""
    try:
        return codec.client_message(data, positions)
    except codec.Malformed as error:  # also text that is not UTF-8
        raise InvalidRequest(f"the bytes are not a message of this protocol: {error}", "kind") from error


class Readiness:
    """What gRPC's health service says, on all servers that share this object; gateways follow it.

    Where the package of that service is not installed, this tells no client; `opensled serve` says so at its start.
    """

    def __init__(self) -> None:
        self._servicer: Any = None
        if find_spec("grpc_health"):
            from grpc_health.v1 import health

            self._servicer = health.aio.HealthServicer()

    async def set(self, serving: bool) -> None:
        if self._servicer is None:
            return
        from grpc_health.v1.health_pb2 import HealthCheckResponse

        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        for name in ("", codec.SERVICE_NAME):
            await self._servicer.set(name, status)

    def add_to(self, server: grpc.aio.Server) -> tuple[str, ...]:
        """Answer at `server`; the names of the services that it has by that."""
        if self._servicer is None:
            return ()
        from grpc_health.v1 import health, health_pb2_grpc

        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        return (str(health.SERVICE_NAME),)


def _reflect(server: grpc.aio.Server, names: tuple[str, ...]) -> None:
    """Describe the services of these names to clients, where the package for that is installed."""
    if find_spec("grpc_reflection"):
        from grpc_reflection.v1alpha import reflection

        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)


async def start(
    service: GrpcFrontend,
    listen: str,
    tls: Tls | None,
    readiness: Readiness | None = None,
    further: Sequence[tuple[str, int]] = (),
) -> tuple[grpc.aio.Server, int]:
    """Listen; returns the server and its port (a free one if `listen` names port 0). `further`: options of gRPC.

    Serving from the start, unless `readiness` is given. Raises OpenSledError if the address is taken.
    """
    server = grpc.aio.server(options=[*dict([*options(service.clients.limits), *further]).items()])
    service.add_to(server)
    if readiness is None:
        readiness = Readiness()
        await readiness.set(True)
    health = readiness.add_to(server)
    if service.tenants.anonymous:  # else unknown clients learn nothing but its health
        _reflect(server, (codec.SERVICE_NAME, *health))
    return server, await _listen(server, listen, tls)


@asynccontextmanager
async def loading(listen: str, tls: Tls | None) -> AsyncIterator[str]:
    """While inside, the port is taken, each call is told that the server is loading, and its health is not serving.

    Yields HOST:PORT, where `start` may listen afterwards: what a message may weigh is not known before the target.
    Raises OpenSledError if the address is taken.
    """

    async def refuse(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, Loading.words)

    server = grpc.aio.server(options=options(ClientLimits(message_bytes=CHEAP_BYTES)))
    take_calls(server, refuse, refuse, refuse, refuse)
    readiness = Readiness()
    await readiness.set(False)
    readiness.add_to(server)
    port = await _listen(server, listen, tls)
    try:
        yield join_host_port(host_port(listen)[0], port)
    finally:
        await server.stop(0)


async def _listen(server: grpc.aio.Server, listen: str, tls: Tls | None) -> int:
    """Start to serve there; returns the port. Raises OpenSledError if it is taken."""
    try:
        port = _bind(server, listen, tls)
    except RuntimeError as error:
        raise OpenSledError(
            f"cannot listen on {listen}; is the port taken? choose another, or 0 for a free one"
        ) from error
    await server.start()
    return port


def _bind(server: grpc.aio.Server, listen: str, tls: Tls | None) -> int:
    if tls is None:
        return server.add_insecure_port(listen)
    credentials = grpc.dynamic_ssl_server_credentials(
        _certificate(tls, tls.identity),
        _Renewal(tls),
        require_client_authentication=bool(tls.client_ca),
    )
    return server.add_secure_port(listen, credentials)


def _certificate(tls: Tls, identity: Identity) -> Any:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.cert)], tls.client_ca or None)


class _Renewal:
    """Asked by gRPC before each handshake, in a thread of its own: the certificate if it is a new one, else None."""

    def __init__(self, tls: Tls) -> None:
        self._tls, self._used = tls, tls.identity

    def __call__(self) -> Any:
        newest = self._tls.newest
        if newest is self._used:
            return None
        self._used = newest
        return _certificate(self._tls, newest)
