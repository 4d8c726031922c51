"""How often one sequence is reopened: a server that takes it and drops it must not keep its device busy."""

from opensled.errors import Unreachable

MOST_FRUITLESS = 32  # times in a row without a new token


class ReopeningPace:
    """The first time is free. Others in quick succession wait: `first` seconds, doubling up to `slowest`.

    Each `slowest` seconds that pass forgive one of them.
    """

    def __init__(self, first: float, slowest: float) -> None:
        self._first, self._slowest = first, slowest
        self._recent = 0.0  # reopenings that are not forgiven yet
        self._last = 0.0  # time of the latest
        self._length = self._fruitless = 0

    def pause(self, now: float, length: int) -> float:
        """Seconds to wait before one more at the time `now`, with `length` tokens known.

        Raises Unreachable after MOST_FRUITLESS in a row without a new token.
        """
        self._fruitless = 0 if length > self._length else self._fruitless + 1
        self._length = length
        if self._fruitless > MOST_FRUITLESS:
            raise Unreachable(
                f"the server took this answer {MOST_FRUITLESS} times and dropped it each time without a token; see "
                "the server's log, or choose another --server"
            )
        return self._backoff(now)

    def _backoff(self, now: float) -> float:
        before = max(0.0, self._recent - (now - self._last) / self._slowest)
        self._recent, self._last = before + 1, now
        return min(self._first * 2 ** (before - 1), self._slowest) if before >= 1 else 0.0
