"""Places for sessions: how many there are at the promised paces, for which tenant, which session gives way, and when
refused requests are expected back.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from opensled.core.errors import Overloaded
from verify_server.access.security import Tenants
from verify_server.admission.admission_memory import UNKNOWN, Departures, PlaceTime, RetryQueue
from verify_server.admission.admission_rules import (
    ActiveLoad,
    AdmissionRequest,
    fair_shares,
    fitting_sessions,
    max_promised,
    may_enter,
    places_for,
    reserved_places,
)
from verify_server.riders.guide import is_guided
from verify_server.round.budget import Quotas
from verify_server.round.loop import VerifyLoop
from verify_server.round.session import Session


class AdmissionController:
    """Admits sessions while those inside keep their pace, each tenant up to its fair share when places are short.

    Only sessions without a reader give way, the oldest first: one of the requesting tenant, else one of the tenant that
    holds the most places, if it holds more than the requesting one. So a tenant cannot push out the absent sessions of
    a tenant that holds no more places than itself. Grammars of guided answers, whose memory is bounded, give way by
    the same rule.
    """

    def __init__(
        self,
        loop: VerifyLoop,
        max_sessions: int,
        tenants: Tenants,
        quotas: Quotas,
        max_pace: float | None = None,
    ) -> None:
        """`max_pace`: see `fitting_sessions`."""
        self._loop, self._max_sessions, self._tenants, self._quotas = loop, max_sessions, tenants, quotas
        self._max_pace = max_pace
        self._arriving: Counter[str] = Counter()
        self._expected = RetryQueue()  # requests for which a place is kept
        self._behind = RetryQueue()  # requests that wait behind them
        self._departures = Departures()
        self._place_time = PlaceTime()
        self._entered = 0  # sessions so far

    @contextmanager
    def arriving(self, request: AdmissionRequest) -> Iterator[None]:
        """While a prompt is being tokenized. Raises Overloaded at once if its session could not find a place."""
        tenant = request.tenant
        self._require_place(request)
        self._arriving[tenant] += 1
        try:
            yield
        finally:
            self._arriving -= Counter({tenant: 1})  # drops tenants at zero

    def _require_place(self, request: AdmissionRequest) -> None:
        tenant, now = request.tenant, self._loop.clock()
        self._departures.note(self._ended, now)
        busy = self._busy()
        self._place_time.note(busy, now)
        limit = self._limit(tenant)
        if limit and busy[tenant] >= limit:
            raise _tenant_full(limit, self._seconds_until(1.0, now))
        if wait := self._quotas.wait(tenant):
            raise Overloaded("the quota of your tenant is used up for now; try again", retry_after=wait)
        places = self._places(request, busy)
        expected = self._expected.counts(now)
        if not may_enter(tenant, busy, expected, places, self._place_time.used):
            raise self._refusal(request, busy, expected, places, now)
        self._expected.back(tenant, self._behind)

    def promise(self, pace: float, tenant: str) -> float:
        """What is promised to a session that asks for `pace` tokens/s: as much as its tenant may have and as one
        session can get."""
        most = max_promised(0.0, self._loop.machine.profile, self._max_pace)
        return min(pace, most, self._tenants.limits_of(tenant).max_pace or most)

    @property
    def taken(self) -> int:
        """Places of sessions with a reader, and of those that are about to have one."""
        return self._busy().total()

    def _busy(self) -> Counter[str]:
        """Sessions with a reader, and those to come, by tenant."""
        busy = Counter(
            session.tenant for session in self._loop.machine.sessions.values() if session.has_reader
        )
        busy.update(self._arriving)
        return busy

    def _places(self, request: AdmissionRequest, busy: Counter[str]) -> int:
        """How many sessions there may be, of all kinds together, for this one to come in."""
        places = places_for(request, self._max_sessions)
        if busy.total() >= places:
            return places
        sessions = self._loop.machine.sessions.values()
        if not request.pace and not any(session.timing.pace for session in sessions):
            return places
        load = ActiveLoad.around(request, (session.view(self._loop.clock()) for session in sessions))
        if not self._has_memory(request):
            return busy.total()
        fit = fitting_sessions(load, self._loop.machine.profile, self._max_sessions, self._max_pace)
        beside = busy.total() - self._arriving.total() - (load.sessions - 1)  # whose pace is not at stake
        # However fast a pace others were promised, a tenant without a place finds one, if it asks for no pace itself.
        least = 0 if request.pace or busy[request.tenant] else busy.total() + 1
        return min(places, max(fit + beside, least))

    def _has_memory(self, request: AdmissionRequest) -> bool:
        """Whether its prompt fits beside the KV of present sessions: to compute that again would cost them pace."""
        machine = self._loop.machine
        present = (session for session in machine.sessions.values() if session.has_reader)
        return request.positions <= machine.target.memory.room_beside(
            session.sequence.memory for session in present
        )

    def _refusal(
        self, request: AdmissionRequest, busy: Counter[str], expected: Counter[str], places: int, now: float
    ) -> Overloaded:
        """With the seconds after which its turn has come, if places become free as fast as now.

        No more places are kept for a tenant than it lacks of its share, but at least one: else places stay empty
        if refused clients do not come back.
        """
        tenant = request.tenant
        shares = fair_shares(tenant, busy, expected, places, self._place_time.used)
        lacks = shares[tenant] - busy[tenant]
        ahead, queue = expected[tenant] + 1.0, self._expected
        if expected[tenant] >= max(1, lacks):
            ahead, queue = ahead + self._behind.counts(now)[tenant], self._behind
        if lacks > 0:
            ahead += reserved_places(tenant, busy, expected, shares)
        elif busy[tenant]:  # it gets the places that its own sessions leave
            ahead *= busy.total() / busy[tenant]
        seconds = self._seconds_until(ahead, now)
        if not request.background:
            queue.add(tenant, seconds, now)
        if busy.total() < self._max_sessions:
            return Overloaded(
                "another session would make others miss their pace or their turn; try again",
                retry_after=seconds,
            )
        return _server_full(seconds)

    def _seconds_until(self, places: float, now: float) -> float:
        return self._departures.seconds_until(places, self._ended, now)

    @property
    def _ended(self) -> int:
        return self._entered - len(self._loop.machine.sessions)

    def yielding(self, tenant: str) -> Session | None:
        """The session that must go before `tenant` can open one more; None if none must. Raises Overloaded."""
        held = Counter(session.tenant for session in self._loop.machine.sessions.values())
        own = self._absent(tenant)
        limit = self._limit(tenant)
        if limit and held[tenant] >= limit:
            if own is None:
                raise _tenant_full(limit, UNKNOWN)
            return own
        if held.total() < self._max_sessions:
            return None
        victim = own or self._absent_of_larger(held, tenant)
        if victim is None:
            raise _server_full(UNKNOWN)
        return victim

    def yielding_grammar(self, tenant: str, taken: Counter[str], own: bool) -> Session | None:
        """The session that must go before there is room for one more grammar of `tenant`; None if none can.

        `taken`: bytes of grammars by tenant; `own`: only those of the tenant make room.
        """
        absent = self._absent(tenant, guided=True)
        return absent if absent or own else self._absent_of_larger(taken, tenant, guided=True)

    def count_entry(self) -> None:
        """One more session has its place."""
        self._entered += 1

    def _limit(self, tenant: str) -> int:
        return self._tenants.limits_of(tenant).max_sessions

    def _absent(self, tenant: str, guided: bool = False) -> Session | None:
        """The oldest one; `guided`: that holds a grammar."""
        own = (one for one in self._loop.machine.sessions.values() if one.tenant == tenant)
        absent = (one for one in own if not one.has_reader)
        return next((one for one in absent if not guided or is_guided(one.riders)), None)

    def _absent_of_larger(self, held: Counter[str], tenant: str, guided: bool = False) -> Session | None:
        """An absent session of the tenant that holds the most among those that hold more than `tenant`."""
        larger = (other for other, count in held.most_common() if count > held[tenant])
        return next((victim for other in larger if (victim := self._absent(other, guided))), None)


def _tenant_full(limit: int, seconds: float) -> Overloaded:
    return Overloaded(
        f"all {limit} sessions of your tenant are taken; end one, or try again", retry_after=seconds
    )


def _server_full(seconds: float) -> Overloaded:
    """It does not say which tenants take the places."""
    return Overloaded("all sessions of this server are taken; try again", retry_after=seconds)
