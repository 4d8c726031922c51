"""The time of a device's draft model: pieces of work one after another, each pass as long as the profile says.

A pass over n tokens takes as long as reading the weights once or as computing n of them, whichever is longer. What it
has to compute follows from the product's own cache discipline (`ModelDrafter`): the first token of an answer comes with
the reading of its prompt; after a verdict the first pass of a block computes what the draft model has not seen yet, the
recovered or bonus token with it. So a block of k tokens takes k passes, and a token that the stop rule threw away one
more.

Nothing is computed in that time, so one process holds many devices: on asyncio's clock in an emulation, on the clock of
the events in a simulation.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from edge_client.round.draft_job import Result, Work
from hw_profiles.profiles import DraftSpeed


def forward_s(speed: DraftSpeed | None, tokens: int) -> float:
    """Seconds of one forward pass over `tokens` tokens of one sequence; None takes no time."""
    if speed is None:
        return 0.0
    return max(speed.draft_s(1), tokens / speed.prefill_per_s.typical)


At = Callable[[float, Callable[[int], None], int], object]  # calls, with an argument, at a time


class _Piece(NamedTuple):
    """Work that was asked for, and what to call with its result."""

    work: Work[Any]
    done: Callable[[Any], None] | None


class DraftPace:
    """What the drafts of one device share. Times are seconds on the clock given; a pass cannot be interrupted."""

    __slots__ = (
        "_alarm", "_at", "_dilation", "_has_begun", "_now", "_pass_s", "_pieces", "_row", "_row_at", "_speed",
        "free_at", "passes",
    )  # fmt: skip

    def __init__(
        self, speed: DraftSpeed | None, now: Callable[[], float], at: At, dilation: float = 1.0
    ) -> None:
        """`speed`: None = passes take no time; `dilation`: seconds of the clock for each second of the profile."""
        self._speed, self._now, self._at, self._dilation = speed, now, at, dilation
        self._pass_s = dilation * forward_s(speed, 1)
        self.free_at = 0.0  # when all passes begun so far are over
        self.passes = 0  # begun so far
        # Passes in a row, and when the first one of them is over: they are multiplied, for sums would drift.
        self._row, self._row_at = 0, 0.0
        self._pieces: deque[_Piece] = deque()  # the first one is under way
        self._has_begun = False
        self._alarm = 0  # number of the latest alarm; older ones do not ring

    def spend(self, tokens: int) -> None:
        """A pass over `tokens` tokens begins as soon as the one before is over."""
        self.passes += 1
        if self._row and tokens == 1:
            self.free_at = self._row_at + self._row * self._pass_s
        else:
            self._row, self._row_at = 0, self.free_at + self._dilation * forward_s(self._speed, tokens)
            self.free_at = self._row_at
        self._row += 1

    def run(self, work: Work[Result], done: Callable[[Result], None] | None = None) -> None:
        """Do the work once that before it is done, and tell `done` its result."""
        self._pieces.append(_Piece(work, done))
        if len(self._pieces) == 1:
            self.free_at = max(self.free_at, self._now())
            self._go_on()

    def hurry(self) -> None:
        """What is to go on at this moment does so now, ahead of what else happens at this moment."""
        if self._pieces and self.free_at <= self._now():
            self._go_on()

    def _go_on(self) -> None:
        """Work until a pass takes time, and once that is over again."""
        while self._pieces:
            if self.free_at > self._now():
                self._wait()
                return
            piece = self._pieces[0]
            try:
                if self._has_begun:
                    piece.work.send(self.free_at)
                    continue
                self._has_begun, self._row = True, 0
                next(piece.work)
            except StopIteration as end:
                self._end(piece, end.value)
                continue
            if self._speed is not None:
                self._wait()  # a pass begins after all that happens at this very moment
                return

    def _end(self, piece: _Piece, result: object) -> None:
        self._has_begun = False
        if piece.done is not None:
            piece.done(result)  # what is asked for meanwhile comes after this piece
        self._pieces.popleft()

    def _wait(self) -> None:
        self._alarm += 1
        self._at(self.free_at, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._go_on()
