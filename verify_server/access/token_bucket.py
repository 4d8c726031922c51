"""Token buckets: how much of something a client may have per second, and at once."""

from collections import OrderedDict

from verify_server.access.client_limits import Rate

# That are kept. Chosen; the one used longest ago goes first, and would be full again by then.
MAX_BUCKETS = 8192


class TokenBucket:
    """What it gives in excess is paid back by those who come next: they wait."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, rate: Rate, now: float) -> None:
        self._per_second, self._burst = rate
        self._left, self._at = self._burst, now

    def take(self, cost: float, now: float) -> float:
        """Take `cost`; returns the seconds until the bucket has earned it, 0 if it had it."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second) - cost
        self._at = now
        return -self._left / self._per_second if self._left < 0 else 0.0


class TokenBuckets:
    """The buckets of one kind, by what they count for."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, names: tuple[str, ...], cost: float, now: float) -> float:
        """Take `cost` from the bucket of each name; returns the longest wait, in seconds."""
        return max([self._of(name, now).take(cost, now) for name in names], default=0.0)

    def _of(self, name: str, now: float) -> TokenBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self._rate, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(name)
        return bucket
