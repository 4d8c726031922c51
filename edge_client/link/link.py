"""The gRPC link to a server and those it names: a channel to each, a bidirectional stream for each sequence."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from edge_client.link.bearer import watched_token
from edge_client.link.link_config import LinkConfig
from edge_client.link.link_errors import explain
from edge_client.link.link_presence import presence
from edge_client.link.moves import destination
from edge_client.link.remote import limit_time
from opensled.core.errors import InvalidRequest, OpenSledError, ProtocolError, Unreachable, Unsupported
from opensled.core.files import CLIENT_FLAGS, Identity, read_authorities, read_identity
from opensled.core.messages import ClientMessage, ModelInfo, Opened, ServerMessage
from opensled.net.outward import grpc_way, system_authorities
from opensled.process.distribution import UPDATE_SERVER
from opensled.process.watched_file import Watched
from opensled.v1 import verify_pb2_grpc
from opensled.wire import codec
from opensled.wire.draft_codec import Reply, decode_draft_reply, draft_request
from opensled.wire.padding import METADATA, Padding, is_padded

# A dead link (a NAT entry that expired, a pulled cable) is noticed within 30 s; servers allow pings from 10 s on.
_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),  # tokenizer.json of a 256k vocabulary
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # also how long one attempt may take: slow links need seconds
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),  # else an earlier line's failure would count for a new one
]

STATUS_SECONDS = 1.0  # for the status of a call whose write has failed; chosen
MAX_CHANNELS = 16  # beside the first; more only while all of them are in use


@dataclass(frozen=True)
class Endpoint:
    """The address of the server and this device's credentials."""

    server: str  # HOST:PORT
    token: str = field(default="", repr=False)  # bearer token, as it was at the start
    tls: bool = False
    tls_ca: Path | None = None  # PEM; None = the system's own
    tls_name: str = ""  # host that the certificate must name; "" = that of `server`
    identity: Identity | None = None  # for servers that ask for a certificate
    timeout: float = 10.0  # seconds for Describe and GetTokenizer
    connect: float = 2.5  # seconds a sequence waits for a connection that its channel is still making
    fallback: str = ""  # HOST:PORT of the server to ask while the other one cannot be reached; "" = none
    tokens: Watched[str] | None = field(default=None, repr=False)  # where `token` comes from; None = it stays

    @property
    def bearer(self) -> str:
        """The bearer token now: one that was replaced counts for new calls."""
        return self.tokens.current() if self.tokens else self.token


def endpoint_at(config: LinkConfig) -> Endpoint:
    """A server as options name it. Raises UsageError or NotFound for a file that cannot be used."""
    tokens = watched_token(config.token_file) if config.token_file else None
    return Endpoint(
        server=config.server,
        token=tokens.latest if tokens else "",
        tokens=tokens,
        tls=config.tls or bool(config.tls_ca or config.client_cert),
        tls_ca=Path(config.tls_ca) if config.tls_ca else None,
        identity=read_identity(config.client_cert, config.client_key, CLIENT_FLAGS),
        tls_name=config.tls_name,
    )


class Channel:
    """One channel to one address."""

    def __init__(self, config: Endpoint) -> None:
        self.config, self.streams = config, 0  # open ones
        self.channel = _channel(config)
        self.stub = verify_pb2_grpc.VerifyStub(self.channel)
        self._sequence = self.channel.stream_stream(f"/{codec.SERVICE_NAME}/Sequence")  # of bytes

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of a call that begins now."""
        bearer = self.config.bearer
        return (("authorization", f"Bearer {bearer}"),) if bearer else ()

    def connect(self, padded: bool = False) -> GrpcStream:
        asked = METADATA if padded else ()
        call = self._sequence(metadata=(*self.metadata, *asked))
        self.streams += 1
        call.add_done_callback(self._release_stream)
        return GrpcStream(call, self.config, Padding() if padded else None)

    async def ask(self, method: str, request: Any) -> Any:
        """The answer to a request that is no stream."""
        config = self.config
        try:
            reply = await getattr(self.stub, method)(request, timeout=config.timeout, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise _explain(error, config) from error
        return _readable(reply, config.server)

    async def draft_parts(self, request: Any) -> AsyncGenerator[Reply, None]:
        """The messages of an answer to GetDraft; each may take as long as an answer that is no stream."""
        config, call = self.config, self.stub.GetDraft(request, metadata=self.metadata)
        try:
            while (message := await limit_time(config.timeout, call.read())) is not grpc.aio.EOF:
                yield decode_draft_reply(_readable(message, config.server))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Unsupported(
                    f"{config.server} is older than this device and hands out no drafts; {UPDATE_SERVER}"
                ) from error
            raise _explain(error, config) from error
        finally:
            call.cancel()

    def _release_stream(self, call: Any) -> None:
        self.streams -= 1


class Link:
    """Channels to one server and to those it sends sequences to, with the same TLS files and token."""

    def __init__(self, config: Endpoint) -> None:
        self._config = config
        self._home = Channel(config)
        self._others: OrderedDict[str, Channel] = OrderedDict()  # by address, the one used last at the end
        self._closing: set[asyncio.Future[None]] = set()

    async def describe(self) -> ModelInfo:
        reply = await self._ask("Describe", codec.describe_request())
        return codec.decode_info(reply)

    async def tokenizer_json(self) -> bytes:
        reply = await self._ask("GetTokenizer", codec.tokenizer_request())
        return reply.tokenizer_json

    async def chat_template(self) -> str:
        reply = await self._ask("GetTokenizer", codec.tokenizer_request())
        return reply.chat_template

    def draft_parts(self, file: str = "", offset: int = 0) -> AsyncGenerator[Reply, None]:
        """What the first server hands out to this device: its manifest, or a file (by sha256) from that byte on."""
        return self._home.draft_parts(draft_request(file, offset))

    def presence(self) -> AsyncIterator[bool]:
        """Whether the first server can be reached; see `link_presence`."""
        return presence(self._home.channel, lambda: self._home.ask("Describe", codec.describe_request()))

    @property
    def server(self) -> str:
        """Address of the first server."""
        return self._config.server

    @property
    def bearer(self) -> str:
        """The bearer token now; "" = none."""
        return self._config.bearer

    @property
    def fallback(self) -> str:
        """Address of the server to ask while the first one cannot be reached; "" = none."""
        return self._config.fallback

    def connect(self, address: str = "") -> GrpcStream:
        """A new stream for one sequence; a lost connection is an error of its first use. See `remote.Connect`.

        Raises ProtocolError for an address that this device does not go to.
        """
        return self._channel_at(address).connect()

    def connect_padded(self, address: str = "") -> GrpcStream:
        """`connect`, to a stream whose frames have fixed sizes in both directions (opensled/wire/padding.py)."""
        return self._channel_at(address).connect(padded=True)

    def _channel_at(self, address: str) -> Channel:
        return self._channel_to(address) if address else self._home

    def _channel_to(self, address: str) -> Channel:
        config = self._config
        if address != config.fallback:  # that one its owner has named
            in_clear = bool(config.token) and not config.tls
            address = destination(address, config.server, secret_in_clear=in_clear)
        if not address:
            return self._home
        channel = self._others.pop(address, None)
        if channel is None:
            self._close_idle(len(self._others) + 1 - MAX_CHANNELS)
            channel = Channel(replace(config, server=address, tls_name=""))
        self._others[address] = channel
        return channel

    def _close_idle(self, count: int) -> None:
        """Close up to `count` channels without a stream, the least recently used first."""
        idle = [address for address, channel in self._others.items() if not channel.streams]
        for address in idle[: max(0, count)]:
            closing = asyncio.ensure_future(self._others.pop(address).channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        channels = (self._home, *self._others.values())
        await asyncio.gather(*(channel.channel.close() for channel in channels), *self._closing)

    async def _ask(self, method: str, request: Any) -> Any:
        """The first server's answer; where that one cannot be reached, the fallback's."""
        try:
            return await self._home.ask(method, request)
        except Unreachable:
            if not self.fallback:
                raise
            return await self._channel_to(self.fallback).ask(method, request)


class GrpcStream:
    """A `remote.Stream` over one gRPC call."""

    def __init__(self, call: Any, config: Endpoint, padding: Padding | None = None) -> None:
        """`call`: of bytes; `padding`: of its messages, None = none. A server that does not pad as well is refused."""
        self._call, self._config, self._padding = call, config, padding
        self._connected = False
        self._one_write = asyncio.Lock()
        self._writes: set[asyncio.Future[None]] = set()  # under way

    async def send(self, message: ClientMessage) -> None:
        """Shielded: a cancelled write would cancel the call, and no Cancel could follow."""
        writing = asyncio.ensure_future(self._write(message))
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        # Its error counts as retrieved even if the sender is cancelled and does not await it.
        writing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(writing)

    async def _write(self, message: ClientMessage) -> None:
        try:
            async with self._one_write:  # gRPC refuses a second one beside it
                await self._connection()
                data = codec.client_bytes(message)
                await self._call.write(self._padding(data) if self._padding else data)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise await self._loss() from error
        except asyncio.CancelledError as error:
            # Nothing cancels this task. The call was cancelled: the sequence is being reopened elsewhere.
            raise Unreachable(f"the stream to {self._config.server} was closed during a write") from error
        except ValueError as error:  # protobuf refuses a number its field cannot hold
            raise InvalidRequest(f"the message cannot be sent: {error}") from error

    async def _connection(self) -> None:
        """Wait for the connection, with a bound: if a host drops packets, TCP tries for minutes."""
        if self._connected:
            return
        connecting = asyncio.ensure_future(self._call.wait_for_connection())
        try:
            await asyncio.wait({connecting}, timeout=self._config.connect)
            if not connecting.done() or connecting.cancelled():  # cancelled: with its call
                raise Unreachable(
                    f"no server answers at {self._config.server} within {self._config.connect:g} s"
                )
            connecting.result()
            self._connected = True
        finally:
            connecting.cancel()

    async def _loss(self) -> OpenSledError:
        """Why the call is over; the error of the write does not say it, and its status may come a moment later."""
        ending = asyncio.ensure_future(self._call.code())
        await asyncio.wait({ending}, timeout=STATUS_SECONDS)
        if not ending.done():
            ending.cancel()
            return Unreachable(f"{self._config.server} ended the stream")
        code, detail = ending.result(), await self._call.details() or ""
        return explain(code, detail, self._config.server, self._config.tls, bool(self._config.tls_ca))

    async def receive(self) -> ServerMessage:
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _explain(error, self._config) from error
        if data is grpc.aio.EOF:
            raise Unreachable(f"{self._config.server} ended the stream")
        try:
            message = codec.server_message(data)
        except codec.Malformed as error:
            raise _unreadable(self._config.server) from error
        if self._padding and isinstance(message, Opened):
            await self._require_padding()
        return message

    async def _require_padding(self) -> None:
        if not is_padded(await self._call.initial_metadata()):
            raise Unsupported(
                "the server does not pad this stream as asked; update it, or drop --pad-frames", "padding"
            )

    async def close(self, linger: float = 0.0) -> None:
        try:
            if linger and not self._call.done():
                await self._linger(linger)
        finally:
            self._call.cancel()
            await asyncio.gather(*self._writes, return_exceptions=True)  # else the loop's end may meet one

    async def _linger(self, seconds: float) -> None:
        """Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with the result."""
        closing = asyncio.ensure_future(self._half_close())
        try:
            await asyncio.wait({closing}, timeout=seconds)
        finally:
            closing.cancel()

    async def _half_close(self) -> None:
        """Half-close the call and let the server end it."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            async with self._one_write:
                await self._call.done_writing()
            await self._call.code()


def _channel(config: Endpoint) -> grpc.aio.Channel:
    # Without the scheme gRPC would take "unix:80" for the path of a socket
    target, options = f"dns:///{config.server}", [*_OPTIONS, *grpc_way(config.server)]
    if not config.tls:
        return grpc.aio.insecure_channel(target, options=options)
    roots = read_authorities(config.tls_ca) if config.tls_ca else system_authorities()
    own = config.identity
    credentials = grpc.ssl_channel_credentials(roots, own and own.key, own and own.cert)
    named = [("grpc.ssl_target_name_override", config.tls_name)] if config.tls_name else []
    return grpc.aio.secure_channel(target, credentials, options=[*options, *named])


def _readable(message: Any, server: str) -> Any:
    """`message`; raises ProtocolError for None, which gRPC gives for bytes that are no message of the schema."""
    if message is None:
        raise _unreadable(server)
    return message


def _unreadable(server: str) -> ProtocolError:
    return ProtocolError(f"{server} does not speak the OpenSLED protocol; check --server")


def _explain(error: grpc.aio.AioRpcError, config: Endpoint) -> OpenSledError:
    return explain(error.code(), error.details() or "", config.server, config.tls, bool(config.tls_ca))
