"""Refused requests that are expected back, and how soon a retry is worth it."""

from __future__ import annotations

from collections import Counter, deque

# Chosen: a shorter wait loads a full server, a longer one leaves a free server idle.
SHORTEST, LONGEST = 0.05, 5.0  # seconds that a client is told to wait
UNKNOWN = 1.0  # seconds to the next free place, while no session has ended yet
LATE, LATE_SHARE = (
    0.25,
    0.25,
)  # a place is kept so much longer: seconds, and share of the told wait (a slow link)
MOST = 64  # of one tenant that are remembered: bounds the places that are kept for it
WINDOW, SAMPLE = 10.0, 0.1  # seconds over which ends of sessions are counted, and between two samples


class RetryQueue:
    """How many requests of each tenant were told to come back, and are not late."""

    def __init__(self) -> None:
        self._until: dict[str, deque[float]] = {}

    def add(self, tenant: str, seconds: float, now: float) -> None:
        """A request of the tenant was told to come back in `seconds`."""
        until = self._until.setdefault(tenant, deque(maxlen=MOST))
        until.append(now + seconds * (1 + LATE_SHARE) + LATE)

    def back(self, tenant: str) -> None:
        """A session of the tenant came in; it counts as the first one that was refused."""
        if until := self._until.get(tenant):
            until.popleft()

    def counts(self, now: float) -> Counter[str]:
        """By tenant, without those who are late."""
        for tenant, until in list(self._until.items()):
            while until and until[0] < now:
                until.popleft()
            if not until:
                del self._until[tenant]
        return Counter({tenant: len(until) for tenant, until in self._until.items()})


class Departures:
    """How fast places become free."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # time, sessions ended by then

    def note(self, ended: int, now: float) -> None:
        """`ended` sessions have ended since the start."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= SAMPLE:
            samples.append((now, ended))
        while samples[0][0] < now - WINDOW:
            samples.popleft()

    def seconds_until(self, places: float, ended: int, now: float) -> float:
        """Until so many places have become free, as fast as over the last WINDOW; between SHORTEST and LONGEST."""
        return min(LONGEST, max(SHORTEST, places / self._per_second(ended, now)))

    def _per_second(self, ended: int, now: float) -> float:
        if not self._samples:
            return 1 / UNKNOWN
        since, before = self._samples[0]
        return (ended - before) / (now - since) if ended > before and now > since else 1 / UNKNOWN
