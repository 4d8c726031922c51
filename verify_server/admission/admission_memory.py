"""What admission remembers: who was sent away and is expected back, who had places of late, and how fast they become
free. Times in seconds on the caller's clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from math import ceil

# Chosen: a shorter wait loads a full server, a longer one leaves a free server idle.
SHORTEST, LONGEST = 0.05, 5.0  # seconds that a client is told to wait
UNKNOWN = 1.0  # seconds to the next free place, while no session has ended yet
# A place is kept so much longer: seconds, and share of the told wait (a slow link)
LATE, LATE_SHARE = 0.25, 0.25
MOST = 64  # of one tenant that are remembered: bounds the places that are kept for it
# Half-life of the time for which a tenant had places, chosen: longer than most answers. Less than this is forgotten.
USED_S, MIN_USED = 30.0, 0.1
WINDOW, SAMPLE = 10.0, 0.1  # seconds over which ends of sessions are counted, and between two samples


class PlaceTime:
    """For how long each tenant had places of late: seconds times places, which fade."""

    def __init__(self) -> None:
        self.used: Mapping[str, float] = {}
        self._at = 0.0

    def note(self, busy: Mapping[str, int], now: float) -> None:
        """Since the last note tenants had about as many places as now."""
        passed, self._at = max(0.0, now - self._at), now
        keep, spent = 0.5 ** (passed / USED_S), min(passed, USED_S)
        used = Counter(
            {name: value * keep for name, value in self.used.items() if value > MIN_USED or name in busy}
        )
        used.update({name: places * spent for name, places in busy.items()})
        self.used = used


class RetryQueue:
    """How many requests of each tenant were told to come back, and are not late."""

    def __init__(self) -> None:
        self._until: dict[str, deque[float]] = {}

    def add(self, tenant: str, seconds: float, now: float) -> None:
        """A request of the tenant was told to come back in `seconds`: over HTTP in whole ones (RFC 9110, 10.2.3)."""
        until = self._until.setdefault(tenant, deque(maxlen=MOST))
        until.append(now + ceil(seconds) * (1 + LATE_SHARE) + LATE)

    def back(self, tenant: str, behind: RetryQueue) -> None:
        """A session of the tenant came in; it counts as the first one that was refused, and the first of those `behind`
        takes its place."""
        if until := self._until.get(tenant):
            until.popleft()
            if others := behind._until.get(tenant):
                until.append(others.popleft())

    def counts(self, now: float) -> Counter[str]:
        """By tenant, without those that are late."""
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
