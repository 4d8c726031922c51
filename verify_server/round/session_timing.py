"""The pace guaranteed to a session's user, and the times of its verdicts."""

from math import inf


class SessionTiming:
    """Times in seconds on the caller's clock."""

    def __init__(self, pace: float = 0.0) -> None:
        """`pace`: tokens/s guaranteed to the user, 0 = none."""
        self.pace = pace
        self.waiting_since = 0.0  # when the latest verdict left
        self._first_at: float | None = None  # when the first committed token left, and
        self._first_length = 0  # the length of the sequence then

    def begin(self, now: float) -> None:
        """The session is admitted."""
        self.waiting_since = now

    def add_verdict(self, length: int, now: float) -> None:
        """A verdict leaves and makes the sequence `length` tokens long."""
        self.waiting_since = now
        if self._first_at is None:
            self._first_at, self._first_length = now, length

    def due(self, length: int) -> float:
        """When the next token of a sequence of `length` must leave to keep the pace, counted from the first one."""
        if not self.pace:
            return inf
        if self._first_at is None:
            return self.waiting_since
        return self._first_at + (length + 1 - self._first_length) / self.pace
