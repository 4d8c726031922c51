"""Who calls the server's HTTP API, and within which limits: those of gRPC's clients (client_limits.py).

ASGI middleware. A request counts as a call, and as a stream without an answer until its body is here; each of its
answers is a stream. A tenant has the same limits over both protocols together.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_api.backend import SPENT
from http_api.exchange import current
from http_api.failures import refusal
from http_api.guard import OPEN_PATHS, admit_any, refuse_without_key, while_admitted
from http_api.http_connection import PEER, RemoteEnd
from opensled.core.errors import Overloaded, Unauthorized
from verify_server.access.clients import Client, Clients, StreamAccount
from verify_server.access.connections import peer_name
from verify_server.access.security import LOCAL_TENANT
from verify_server.front.operators import FLEET_PATHS, Operators
from verify_server.front.sequences import Sequences

CALLER = "opensled.caller"  # in an ASGI scope: the `Caller` of a request
RETRY_S = 1.0  # after which a client with too large requests is told to come back; chosen
REFUSED = (401, 403)


class Caller:
    """Who makes one request."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._paid = True

    def pays(self) -> bool:
        """Whether the next answer counts as a call: all but the first one, which the request itself was."""
        paid, self._paid = self._paid, False
        return not paid


class ClientGuard:
    """Finds the client of each request, and lets it wait or refuses it."""

    def __init__(self, app: ASGIApp, sequences: Sequences, operators: Operators) -> None:
        self._app, self._tenants, self._clients = app, sequences.tenants, sequences.clients
        self._operators = operators
        self._refused, self._answers = sequences.refused, sequences.answers
        self._held = Counter[str]()  # bytes of bodies that are arriving, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer: RemoteEnd = scope[PEER]
        if scope["path"] in FLEET_PATHS:
            await self._clients.after_refusals(peer_name(*peer[:2]))
        try:
            tenant = self._tenant(scope, peer)
        except Unauthorized as error:
            self._refused[error.code] += 1
            fleet = scope["path"] in FLEET_PATHS
            refused = refusal(scope["path"], error) if fleet else refuse_without_key(scope, "--tokens")
            await refused(scope, receive, send)
            return
        if scope["path"] in FLEET_PATHS:
            send = while_admitted(send, partial(self._is_operator, Headers(scope=scope)))
        if scope["path"] not in OPEN_PATHS:
            exchange = current()
            exchange.tenant, exchange.counts = tenant, self._answers
        await self._admit(self._clients.client(peer_name(*peer[:2]), tenant), scope, receive, send)

    def _is_operator(self, headers: Headers) -> bool:
        try:
            admit_any(headers, self._operators.admit)
        except Unauthorized:
            return False
        return True

    def _tenant(self, scope: Scope, peer: RemoteEnd) -> str:
        if scope["path"] in OPEN_PATHS:
            return LOCAL_TENANT
        if scope["path"] in FLEET_PATHS:
            admit_any(Headers(scope=scope), self._operators.admit)
            return LOCAL_TENANT
        names: tuple[bytes, ...] = ()
        if self._tenants.named_by_certificate:
            # Its library is needed with client certificates only
            from verify_server.access.certificates import common_names

            names = common_names(peer.certificate)
        return admit_any(Headers(scope=scope), partial(self._tenants.of, names=names))

    async def _admit(self, client: Client, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as arriving:
            try:
                account = arriving.enter_context(self._clients.stream(client))
                await self._clients.call(client)
            except Overloaded as error:
                await refusal(scope["path"], error)(scope, receive, send)
                return
            body = arriving.enter_context(_Body(self._held, client, account))

            async def receive_and_count() -> Message:
                message = await receive()
                if message["type"] != "http.request":
                    return message
                await body.take(len(message.get("body", b"")), message.get("more_body", False))
                if not message.get("more_body", False):
                    arriving.close()
                return message

            told = {**scope, CALLER: Caller(client), SPENT: account.charge}
            await self._app(told, receive_and_count, partial(_answer, arriving, send))


async def _answer(arriving: ExitStack, send: Send, message: Message) -> None:
    """From its first byte on, a response counts no longer among what has no answer."""
    arriving.close()
    await send(message)


class _Body:
    """The bytes of one request's body, until it is whole: many large ones may not fill the memory together."""

    def __init__(self, held: Counter[str], client: Client, account: StreamAccount) -> None:
        self._held, self._names, self._account = held, client.names, account
        self._size = 0

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *error: Any) -> None:
        for name in self._names:
            self._held[name] -= self._size
            if not self._held[name]:
                del self._held[name]

    async def take(self, size: int, more: bool) -> None:
        """`size` further bytes; after the last ones, wait until so large a body may be parsed. Raises Overloaded."""
        self._size += size
        for name in self._names:
            self._held[name] += size
        if max((self._held[name] for name in self._names), default=0) > self._account.limits.opening_bytes:
            raise Overloaded(
                "too many large requests of this address or key arrive at the same time; try again",
                retry_after=RETRY_S,
            )
        if not more and self._size > self._account.limits.small_bytes:
            await self._account.large(self._size)


class RefusalCounter:
    """ASGI middleware, outermost: a peer whose requests are refused again and again loses its connection."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app, self._clients = app, clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSED:
                self._clients.count_refusal(peer_name(*scope[PEER][:2]))
            await send(message)

        await self._app(scope, receive, count_and_send)
