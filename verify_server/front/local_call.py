"""A call of `Sequence` whose client is in this process: its bytes, its session and its limits are those of gRPC."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from opensled.core.errors import InvalidRequest, Unreachable
from opensled.core.messages import Failure, Moved, Open, ServerMessage
from opensled.wire import codec
from verify_server.access.byte_stream import ByteStream
from verify_server.access.clients import Client, Clients

MAX_UNREAD = 4  # messages that wait for the client; with more of them the server's writes wait. Chosen

Serve = Callable[[ByteStream], Awaitable[None]]


class LocalCall:
    """Both ends of the call. The client sends `Open` and reads on, without drafts (a half-close)."""

    def __init__(self, opening: bytes) -> None:
        self._opening: bytes | None = opening
        self._written: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._space = asyncio.Semaphore(MAX_UNREAD)
        self._serving: asyncio.Future[None] | None = None

    # -- the server's end, as gRPC's context has it ---------------------------------------------------------

    def time_remaining(self) -> float | None:
        """No deadline."""
        return None

    async def read(self) -> Any:
        opening, self._opening = self._opening, None
        return grpc.aio.EOF if opening is None else opening

    async def write(self, data: bytes) -> None:
        await self._space.acquire()
        self._written.append(data)
        self._changed.set()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End the call by an error; raises it."""
        raise Unreachable(details)

    # -- the client's end -----------------------------------------------------------------------------------

    def begin(self, serving: asyncio.Future[None]) -> None:
        """`serving` is the server's work on this call."""
        self._serving = serving
        serving.add_done_callback(lambda _: self._changed.set())

    async def receive(self) -> ServerMessage:
        """The next message. Raises what the server reports, and what ended the call without a report."""
        assert self._serving is not None
        while not self._written:
            if self._serving.done():
                self._serving.result()
                raise Unreachable("the server ended the sequence without an answer; ask again")
            self._changed.clear()
            await self._changed.wait()
        self._space.release()
        message = codec.server_message(self._written.popleft())
        if isinstance(message, Failure):
            raise message.error()
        if isinstance(message, Moved):
            raise Unreachable("the server is shutting down, and this answer did not end in time; ask again")
        return message


@asynccontextmanager
async def local_call(
    clients: Clients, client: Client, opening: Open, linger: float, serve: Serve, paid: bool = False
) -> AsyncIterator[LocalCall]:
    """Call `serve` within the limits of `client`; leaving the context ends the call.

    `linger`: seconds for which its reader may be silent. `paid`: it counts among the client's calls already.
    """
    data = codec.client_bytes(opening)
    if len(data) > clients.limits.message_bytes:
        raise InvalidRequest(
            f"the content of the request is larger than {clients.limits.message_bytes >> 10} KiB"
        )
    call = LocalCall(data)
    serving = asyncio.ensure_future(_run(clients, client, call, linger, serve, paid))
    call.begin(serving)
    try:
        yield call
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _run(
    clients: Clients, client: Client, call: LocalCall, linger: float, serve: Serve, paid: bool
) -> None:
    """Like `byte_stream.run_stream`, whose errors go over a wire."""
    with clients.stream(client) as account:
        stream = ByteStream(call, client, account, max(linger, clients.limits.farewell_s), may_return=False)
        try:
            if not paid:
                await clients.call(client)
            await serve(stream)
        except asyncio.CancelledError:
            if stream.silent:
                await clients.hang_up(client)
            raise
        finally:
            stream.close()
