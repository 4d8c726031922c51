"""The gRPC front end of the server: carries messages, decides nothing."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from opensled import codec
from opensled.errors import InvalidRequest, OpenSledError, Unauthorized
from opensled.messages import ClientMessage, ModelInfo, ServerMessage
from opensled.v1 import verify_pb2_grpc
from verify_server.security import Tenants, Tls
from verify_server.session_manager import SessionManager
from verify_server.session_stream import serve_stream
from verify_server.target import TextCodec

log = logging.getLogger(__name__)

# Devices ping every 20 s to find dead links; gRPC's default answers that with GOAWAY too_many_pings. Times in ms.
_OPTIONS = [
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),  # a busy port is an error, not a second server
]

Server = grpc.aio.Server


class GrpcFrontend(Protocol):
    """What a gRPC server can serve: a `VerifyService` or a `Gateway`."""

    tenants: Tenants

    def add_to(self, server: grpc.aio.Server) -> None: ...


class VerifyService(verify_pb2_grpc.VerifyServicer):
    """The three calls of proto/opensled/v1/verify.proto."""

    def __init__(self, manager: SessionManager, info: ModelInfo, text: TextCodec, tenants: Tenants) -> None:
        self._manager, self._info, self._text, self.tenants = manager, info, text, tenants

    async def Describe(self, request: Any, context: Any) -> Any:
        await self._tenant(context)
        return codec.encode_info(self._info)

    async def GetTokenizer(self, request: Any, context: Any) -> Any:
        await self._tenant(context)
        return codec.tokenizer_reply(self._text.tokenizer_json, self._text.chat_template)

    async def Sequence(self, request_iterator: Any, context: Any) -> None:
        tenant = await self._tenant(context)

        async def receive() -> ClientMessage | None:
            try:
                message = await context.read()
            except codec.Malformed as error:  # also text that is not UTF-8
                raise malformed(error) from error
            return None if message is grpc.aio.EOF else codec.decode_client(message)

        async def send(message: ServerMessage) -> None:
            await context.write(codec.encode_server(message))

        try:
            await serve_stream(self._manager, tenant, receive, send, context.time_remaining())
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of this call has passed")

    async def _tenant(self, context: Any) -> str:
        return await tenant_of(context, self.tenants, self._manager.stats.refused)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Take the calls that arrive at `server`."""
        verify_pb2_grpc.add_VerifyServicer_to_server(self, server)


async def tenant_of(context: Any, tenants: Tenants, refused: Counter[str]) -> str:
    """The tenant of a call. Every call begins here: a client without access costs no work."""
    metadata = dict(context.invocation_metadata())
    names = _names(context) if tenants.named_by_certificate else ()
    try:
        return tenants.of(str(metadata.get("authorization", "")), names)
    except Unauthorized as error:
        refused[error.code] += 1
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        raise


def _names(context: Any) -> tuple[bytes, ...]:
    from verify_server.certificates import common_names  # its library is needed with client certificates only

    return tuple(
        name for pem in context.auth_context().get("x509_pem_cert", ()) for name in common_names(pem)
    )


def malformed(error: Exception) -> InvalidRequest:
    """The error for a peer whose bytes cannot be read."""
    return InvalidRequest(f"the bytes are no message of this protocol: {error}", "kind")


class Readiness:
    """What gRPC's health service says, on all servers that share this object; gateways follow it."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def set(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", codec.SERVICE_NAME):
            await self.servicer.set(name, status.SERVING if serving else status.NOT_SERVING)


async def start(
    service: GrpcFrontend, listen: str, tls: Tls | None, readiness: Readiness | None = None
) -> tuple[grpc.aio.Server, int]:
    """Listen; returns the server and its port (a free one if `listen` names port 0).

    Serving from the start, unless `readiness` is given. Raises OpenSledError if the address is taken.
    """
    server = grpc.aio.server(options=_OPTIONS)
    service.add_to(server)
    if readiness is None:
        readiness = Readiness()
        await readiness.set(True)
    health_pb2_grpc.add_HealthServicer_to_server(readiness.servicer, server)
    if service.tenants.anonymous:  # else unknown clients learn nothing but its health
        reflection.enable_server_reflection(
            (codec.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
    try:
        port = _bind(server, listen, tls)
    except RuntimeError as error:
        raise OpenSledError(
            f"cannot listen on {listen}; is the port taken? choose another, or 0 for a free one"
        ) from error
    await server.start()
    return server, port


def _bind(server: grpc.aio.Server, listen: str, tls: Tls | None) -> int:
    if tls is None:
        return server.add_insecure_port(listen)
    pairs = [(tls.identity.key, tls.identity.cert)]
    credentials = grpc.ssl_server_credentials(
        pairs, tls.client_ca or None, require_client_auth=bool(tls.client_ca)
    )
    return server.add_secure_port(listen, credentials)
