"""The gRPC face of the server: carries messages, decides nothing."""

from __future__ import annotations

import logging
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from opensled import codec
from opensled.errors import InvalidRequest, OpenSledError, Unauthorized
from opensled.messages import ClientMessage, ModelInfo, ServerMessage
from opensled.v1 import verify_pb2_grpc
from verify_server.security import Tenants, Tls
from verify_server.sessions import Door
from verify_server.stream import serve_stream
from verify_server.target import Text

log = logging.getLogger(__name__)

# Edges ping every 20 s to find dead links; gRPC's default would answer that with GOAWAY too_many_pings.
_OPTIONS = [
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),  # a busy port is an error, not a second server
]


Server = grpc.aio.Server


class VerifyService(verify_pb2_grpc.VerifyServicer):
    """The three calls of proto/opensled/v1/verify.proto."""

    def __init__(self, door: Door, info: ModelInfo, text: Text, tenants: Tenants) -> None:
        self._door, self._info, self._text, self.tenants = door, info, text, tenants

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
                raise InvalidRequest(f"the bytes are no message of this protocol: {error}", "kind") from error
            return None if message is grpc.aio.EOF else codec.decode_client(message)

        async def send(message: ServerMessage) -> None:
            await context.write(codec.encode_server(message))

        await serve_stream(self._door, tenant, receive, send)

    async def _tenant(self, context: Any) -> str:
        """Everything starts here: who may not come in costs no work."""
        metadata = dict(context.invocation_metadata())
        names = context.auth_context().get("x509_common_name", ())
        try:
            return self.tenants.of(str(metadata.get("authorization", "")), tuple(names))
        except Unauthorized as error:
            self._door.stats.refused[error.code] += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise


async def start(service: VerifyService, listen: str, tls: Tls | None) -> tuple[grpc.aio.Server, int]:
    """Listen; returns the server and its port (the one chosen when `listen` says 0)."""
    server = grpc.aio.server(options=_OPTIONS)
    verify_pb2_grpc.add_VerifyServicer_to_server(service, server)
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", codec.SERVICE_NAME):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    if service.tenants.everybody:  # else nothing but its health is told to whom nobody knows
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
