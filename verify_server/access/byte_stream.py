"""One call over gRPC as the bytes of its messages: who makes it, and the limits that it meets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from opensled.core.errors import Overloaded, Unauthorized, Unreachable
from opensled.core.messages import Failure
from opensled.wire import codec
from opensled.wire.padding import METADATA, Padding, is_padded
from verify_server.access.clients import Client, Clients, StreamAccount
from verify_server.access.security import Tenants


async def client_of(context: Any, tenants: Tenants, clients: Clients, refused: Counter[str]) -> Client:
    """The client of a call. Every call begins here: a client without access costs no work."""
    metadata = dict(context.invocation_metadata())
    names = _names(context) if tenants.named_by_certificate else ()
    try:
        tenant = tenants.of(str(metadata.get("authorization", "")), names)
    except Unauthorized as error:
        refused[error.code] += 1
        clients.count_refusal(context.peer())
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        raise
    return clients.client(context.peer(), tenant)


def _names(context: Any) -> tuple[bytes, ...]:
    from verify_server.access.certificates import (
        common_names,  # its library is needed with client certificates only
    )

    return tuple(
        name for pem in context.auth_context().get("x509_pem_cert", ()) for name in common_names(pem)
    )


async def admit_call(context: Any, clients: Clients, client: Client) -> None:
    """Let a call with one answer wait for its turn; ends it with UNAVAILABLE if too many of its client wait."""
    try:
        with clients.stream(client):
            await clients.call(client)
    except Overloaded as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


class ByteStream:
    """The messages of one call of `Sequence`, as bytes.

    A peer that takes nothing for `silent_s` seconds is gone: then the task that made this object is cancelled.
    """

    def __init__(
        self,
        context: Any,
        client: Client,
        account: StreamAccount,
        silent_s: float,
        padding: Padding | None = None,
    ) -> None:
        """`padding`: of what is written, None = none."""
        self._padding = padding
        self._context, self.client, self.account = context, client, account
        self.seconds: float | None = context.time_remaining()
        self.begun = self.silent = False  # whether a message has arrived; whether the peer takes none
        self._silent_s, self._answered, self._small = silent_s, False, account.limits.small_bytes
        self._task, self._clock = asyncio.current_task(), asyncio.get_running_loop().time
        self._since: float | None = None  # when the present write began
        self._timer: asyncio.TimerHandle | None = None  # as long as writes are watched

    @property
    def padded(self) -> bool:
        """Whether the peer has asked for frames of fixed sizes."""
        return self._padding is not None

    async def read(self) -> bytes | None:
        """The next message; None if the peer sends none any more. Raises Unreachable if the first one is late."""
        data = await (self._context.read() if self.begun else self._first())
        if data is grpc.aio.EOF:
            return None
        if len(data) > self._small:
            await self.account.large(len(data))
        return data

    async def _first(self) -> Any:
        seconds = self.account.limits.first_s
        try:
            async with asyncio.timeout(seconds):
                data = await self._context.read()
        except TimeoutError:
            # An error that devices retry: an honest one may be starved of its processor, or of its link.
            raise Unreachable(
                f"no message for {seconds:g} s: the device or its link is too busy, or it never sends Open"
            ) from None
        self.begun = True
        return data

    async def write(self, data: bytes) -> None:
        self._since = self._clock()
        if self._timer is None:
            self._watch()
        try:
            await self._context.write(self._padding(data) if self._padding else data)
        except Exception:
            self._since = None
            raise
        self._since = None
        if not self._answered:
            self._answered = True
            self.account.end_opening()

    def _watch(self) -> None:
        """Look at the present write when it will have taken too long."""
        if self._since is None:
            self._timer = None
            return
        limit = self._silent_s if self._answered else self.account.limits.farewell_s
        due = self._since + limit
        if self._clock() < due:
            self._timer = asyncio.get_running_loop().call_at(due, self._watch)
        elif self._task is not None:
            self.silent = True
            self._task.cancel()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End the call with this status; raises."""
        await self._context.abort(code, details)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def run_stream(
    clients: Clients,
    client: Client,
    context: Any,
    linger: float,
    serve: Callable[[ByteStream], Awaitable[None]],
) -> None:
    """Serve one call of `Sequence` within the limits of its client.

    `linger`: seconds for which its reader may be silent, at least those for the end of a stream.
    """
    try:
        with clients.stream(client) as account:
            padding = Padding() if is_padded(context.invocation_metadata()) else None
            silent_s = max(linger, clients.limits.farewell_s)
            stream = ByteStream(context, client, account, silent_s, padding=padding)
            try:
                await clients.call(client)
                if padding:
                    await context.send_initial_metadata(METADATA)
                await serve(stream)
            except asyncio.CancelledError:
                if not stream.silent:
                    if not stream.begun:
                        clients.count_refusal(client.peer)
                    raise
                await clients.hang_up(client)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of this call has passed")
            finally:
                stream.close()
    except Overloaded as error:
        await _refuse(clients, client, context, error)


async def _refuse(clients: Clients, client: Client, context: Any, error: Overloaded) -> None:
    """Refuse a stream unread. Its first message is waited for: a client that cannot send it would not read on."""
    seconds = clients.limits.farewell_s
    try:
        async with asyncio.timeout(seconds):
            await context.write(codec.server_bytes(Failure.of(error)))
    except TimeoutError:
        await clients.hang_up(client)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await context.read()
