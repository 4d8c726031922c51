"""When things happen to one session: its device's drafts, its verdicts, and the pace its user was promised."""

from collections import deque
from math import inf

from scheduler.estimates import DraftEstimate

# Latest verdicts of which the time is known; drafts on older ones are slow in any case.
VERDICTS_TIMED = 64


class SessionTiming:
    """Times in seconds on the caller's clock."""

    def __init__(self, estimate: DraftEstimate | None = None, pace: float = 0.0) -> None:
        """`estimate`: of the device's drafts; `pace`: tokens/s promised to the user, 0 = none."""
        self.estimate, self.pace = estimate or DraftEstimate(), pace
        self.waiting_since = 0.0  # when the latest verdict left
        self.asked_since = 0.0  # when the verdict left on which the device now drafts
        self._verdicts: deque[tuple[int, float]] = deque(maxlen=VERDICTS_TIMED)  # (length, time)
        self._first_at: float | None = None  # when the first committed token left, and
        self._first_length = 0  # the length of the sequence then

    def begin(self, now: float) -> None:
        """The session is admitted."""
        self.waiting_since = self.asked_since = now

    def reopened(self) -> None:
        """What a device sends again after an outage says nothing of its drafting."""
        self._verdicts.clear()

    def arrived(self, base: int, depth: int, drafting_s: float, now: float) -> None:
        """A draft of `depth` tokens on the first `base` ones is here: learn how long the device takes."""
        if not depth:
            return
        for length, left in reversed(self._verdicts):  # nearly always the latest one
            if length == base:
                self.estimate.arrived(now - left, depth, drafting_s)
                return

    def left(self, length: int, now: float) -> None:
        """A verdict leaves, which makes the sequence `length` tokens long."""
        self.waiting_since = now
        if self._first_at is None:
            self._first_at, self._first_length = now, length

    def asked(self, length: int, now: float) -> None:
        """A verdict leaves on which the device, which has just drafted, drafts again.

        A first draft, or one after a rest, follows the reading of a long text: its time says nothing of the next one.
        """
        self.asked_since = now
        self._verdicts.append((length, now))

    def due(self, length: int) -> float:
        """When the next token of a sequence of `length` must leave to keep the pace, counted from the first one."""
        if not self.pace:
            return inf
        if self._first_at is None:
            return self.waiting_since
        return self._first_at + (length + 1 - self._first_length) / self.pace
