"""Counts what clients send and hold against the limits of client_limits.py: one account for each stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from opensled.core.errors import Overloaded
from verify_server.access.client_limits import ClientLimits
from verify_server.access.connections import ConnectionCloser, address_of
from verify_server.access.security import LOCAL_TENANT, Tenants
from verify_server.access.token_bucket import TokenBuckets

RETRY_S = 0.25  # after which a client with too many streams is told to come back; chosen
GUESS_S = 2.0  # for which a guessed key waits at most; chosen: an operator at the same address can bear it
STUCK_S = 60.0  # for which a peer may leave the end of a stream unread; chosen


class Client(NamedTuple):
    """Who is at the other end of a stream."""

    tenant: str
    peer: str  # the connection, as gRPC names it
    # Under which it is counted: its connection and address, and its tenant if there are tenants
    names: tuple[str, ...]


class _Tally(Counter[str]):
    """Counts that come and go; none stays at zero."""

    def leave(self, name: str) -> None:
        """One less of `name`."""
        self[name] -= 1
        if not self[name]:
            del self[name]


class StreamAccount:
    """What one stream is charged for."""

    def __init__(self, clients: Clients, client: Client) -> None:
        self._clients, self._client = clients, client
        self.limits = clients.limits
        self._opening = True

    async def large(self, size: int) -> None:
        """A message of `size` bytes has arrived: wait until it may be parsed."""
        await self._clients.wait("bytes", self._client.names, size)

    def charge(self, seconds: float) -> None:
        """It took `seconds` of processor time to read what arrived: the next calls of this client pay for it."""
        self._clients.spend("reading", self._client.names, seconds)

    async def idle(self) -> None:
        """A message gained nothing: wait before the next one is read."""
        await self._clients.wait("idle_messages", self._client.names)

    def end_opening(self) -> None:
        """The first message has got its answer."""
        if self._opening:
            self._opening = False
            for name in self._client.names:
                self._clients.opening.leave(name)


class Clients:
    """All clients of one listening address."""

    def __init__(
        self,
        limits: ClientLimits,
        tenants: Tenants,
        places: int,
        met: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        """`places`: sequences at the same time, of a tenant without a limit of its own; `met`: how often each limit was
        met; `clock`: in seconds."""
        self.limits, self._tenants, self._places, self._met, self._clock = limits, tenants, places, met, clock
        kinds = ("calls", "bytes", "reading", "idle_messages", "refusals")
        self._buckets = {kind: TokenBuckets(getattr(limits, kind)) for kind in kinds}
        self.opening = _Tally()  # streams without an answer to their first message, by name
        self._streams = _Tally()  # by tenant
        self._connected = _Tally()  # streams by connection
        self._stuck = _Tally()  # of them, streams whose end is not read
        self._closer = ConnectionCloser()

    def client(self, peer: str, tenant: str) -> Client:
        """The client at `peer`; `tenant` has been checked."""
        known = () if tenant == LOCAL_TENANT else (f"tenant {tenant}",)
        return Client(tenant, peer, (*self._places_of(peer), *known))

    def _places_of(self, peer: str) -> tuple[str, ...]:
        if not self.limits.by_connection:
            return ()
        return (peer, address_of(peer)) if self.limits.by_address else (peer,)

    def count_refusal(self, peer: str) -> None:
        """A call from there has no access, or was cancelled at once; too many of them end the connection."""
        names = self._places_of(peer)
        if self.spend("refusals", names, 1.0):
            self._close(peer, "refusals")

    async def after_refusals(self, peer: str) -> None:
        """Wait, where too many calls from there had no access, before one more key is looked at: guesses are slow."""
        seconds = self.spend("refusals", self._places_of(peer), 0.0)
        if seconds:
            await asyncio.sleep(min(seconds, GUESS_S))

    async def call(self, client: Client) -> None:
        """One more call: it waits for its turn if its client makes too many, or too expensive ones."""
        await self.wait("reading", client.names, 0.0)
        await self.wait("calls", client.names)

    def spend(self, kind: str, names: tuple[str, ...], cost: float) -> float:
        """Take `cost` from the buckets of `kind`; returns the seconds until they have earned it."""
        return self._buckets[kind].take(names, cost, self._clock())

    async def wait(self, kind: str, names: tuple[str, ...], cost: float = 1.0) -> None:
        """Take `cost` from the buckets of `kind`; wait until they have earned it."""
        seconds = self.spend(kind, names, cost)
        if seconds:
            self._met[kind] += 1
            await asyncio.sleep(seconds)

    @contextlib.contextmanager
    def stream(self, client: Client) -> Iterator[StreamAccount]:
        """The account of one more stream; raises Overloaded if its client has too many."""
        self._require_room(client)
        account = StreamAccount(self, client)
        self.opening.update(client.names)
        self._streams[client.tenant] += 1
        self._connected[client.peer] += 1
        try:
            yield account
        finally:
            account.end_opening()
            self._streams.leave(client.tenant)
            self._connected.leave(client.peer)

    def _require_room(self, client: Client) -> None:
        most = self.limits.max_opening
        opening = max((self.opening[name] for name in client.names), default=0)
        places = self._tenants.limits_of(client.tenant).max_sessions or self._places
        if opening < most and self._streams[client.tenant] < places + most:
            return
        self._met["streams"] += 1
        raise Overloaded(
            "too many streams of this address or key are open; end yours, or try again", retry_after=RETRY_S
        )

    async def hang_up(self, client: Client) -> None:
        """Wait until a peer is gone that does not read the end of a stream: gRPC cannot end such a call.

        Its connection is closed at once if all its streams are like this, or too many of them, else after STUCK_S.
        """
        self._met["silence"] += 1
        self._stuck[client.peer] += 1
        try:
            stuck = self._stuck[client.peer]
            if stuck < min(self.limits.stuck, self._connected[client.peer]):
                await asyncio.sleep(STUCK_S)
            self._close(client.peer, "unread")
            await asyncio.sleep(self.limits.farewell_s)
        finally:
            self._stuck.leave(client.peer)

    def _close(self, peer: str, cause: str) -> None:
        self._met[cause] += 1
        if self.limits.by_connection:
            self._closer.close(peer)
