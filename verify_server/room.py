"""Places for sessions: how many are left, for whom, and whose session gives way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opensled.errors import Overloaded
from verify_server.security import Tenants
from verify_server.session import Session

RETRY_AFTER = 1.0  # seconds


class Room:
    """Counts the live sessions, of the server and of each tenant.

    Only sessions without a reader give way, the oldest first: one of the newcomer's own tenant, else one of the tenant
    who holds the most places, if those are more than the newcomer's. So nobody can push out the absent sessions of a
    tenant who takes no more than he does himself.
    """

    def __init__(self, sessions: Mapping[int, Session], max_sessions: int, tenants: Tenants) -> None:
        self._sessions, self._max_sessions, self._tenants = sessions, max_sessions, tenants
        self._arriving: Counter[str] = Counter()

    @contextmanager
    def arriving(self, tenant: str) -> Iterator[None]:
        """While a prompt is being tokenized; Overloaded before that, where its session could not find a place."""
        busy = Counter(session.tenant for session in self._sessions.values() if session.has_reader)
        busy.update(self._arriving)
        limit = self._limit(tenant)
        if limit and busy[tenant] >= limit:
            raise _tenant_full(limit)
        if busy.total() >= self._max_sessions:
            raise _server_full()
        self._arriving[tenant] += 1
        try:
            yield
        finally:
            self._arriving -= Counter({tenant: 1})  # drops tenants at zero

    def yielding(self, tenant: str) -> Session | None:
        """The session that must go before `tenant` can open one more, None if none must; raises Overloaded."""
        held = Counter(session.tenant for session in self._sessions.values())
        own = self._absent(tenant)
        limit = self._limit(tenant)
        if limit and held[tenant] >= limit:
            if own is None:
                raise _tenant_full(limit)
            return own
        if held.total() < self._max_sessions:
            return None
        victim = own or self._absent_of_a_greater(held, tenant)
        if victim is None:
            raise _server_full()
        return victim

    def _limit(self, tenant: str) -> int:
        return self._tenants.limits_of(tenant).max_sessions

    def _absent(self, tenant: str) -> Session | None:
        sessions = self._sessions.values()
        return next((one for one in sessions if one.tenant == tenant and not one.has_reader), None)

    def _absent_of_a_greater(self, held: Counter[str], tenant: str) -> Session | None:
        """An absent session of the tenant with the most places among those with more than `tenant`."""
        greater = (other for other, places in held.most_common() if places > held[tenant])
        return next((victim for other in greater if (victim := self._absent(other))), None)


def _tenant_full(limit: int) -> Overloaded:
    return Overloaded(
        f"all {limit} sessions of your tenant are taken; end one, or try again", retry_after=RETRY_AFTER
    )


def _server_full() -> Overloaded:
    """Says nothing of who takes them."""
    return Overloaded("all sessions of this server are taken; try again", retry_after=RETRY_AFTER)
