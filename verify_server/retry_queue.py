"""Those whom the door sent away and expects back, and how soon it is worth their while."""

from __future__ import annotations

from collections import Counter, deque

# Seconds. Nobody is told to stay away for longer, so that a server that is free again is not idle for long.
SHORTEST, LONGEST = 0.05, 5.0
UNKNOWN = 1.0  # to the next free place, while no session has ended yet
LATE = 0.25  # seconds after his time that a place is still kept for him who was sent away, and
LATE_SHARE = 0.25  # this share of the time he was told besides
MOST = 64  # of one tenant that are remembered: a place can only be kept for as many as may come in
WINDOW = 10.0  # seconds over which ends of sessions are counted
SAMPLE = 0.1  # seconds between two samples of their number


class RetryQueue:
    """How many of each tenant were told to come back, and are not late."""

    def __init__(self) -> None:
        self._until: dict[str, deque[float]] = {}

    def add(self, tenant: str, seconds: float, now: float) -> None:
        """One of his was told to come back in so many seconds."""
        until = self._until.setdefault(tenant, deque(maxlen=MOST))
        until.append(now + seconds * (1 + LATE_SHARE) + LATE)

    def back(self, tenant: str) -> None:
        """One of his came in, maybe the one who was sent away first."""
        if until := self._until.get(tenant):
            until.popleft()

    def counts(self, now: float) -> Counter[str]:
        """By tenant, without those who should have been back."""
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
        """So many sessions have ended since the start."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= SAMPLE:
            samples.append((now, ended))
        while samples[0][0] < now - WINDOW:
            samples.popleft()

    def per_second(self, ended: int, now: float) -> float:
        """Over the last seconds; 1 / UNKNOWN while none has ended in them."""
        if not self._samples:
            return 1 / UNKNOWN
        since, before = self._samples[0]
        return (ended - before) / (now - since) if ended > before and now > since else 1 / UNKNOWN


def patience(places: float, per_second: float) -> float:
    """Seconds until so many places have become free."""
    return min(LONGEST, max(SHORTEST, places / per_second))
