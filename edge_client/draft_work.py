"""Pieces of a drafting job (draft_job.py): the work ahead of one block, and how much of a long text a pass reads."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from opensled.messages import DraftBlock

FIRST_PIECE, LONGEST_PIECE = 16, 512  # tokens of a text that are read in one pass
# Seconds that such a pass is to take: a verdict waits for its end, and short passes read slowly (chosen)
PIECE_S = 0.05

Result = TypeVar("Result")
Work = Generator[None, float, Result]  # receives the time after each pass, in seconds


@dataclass
class Pieces:
    """How many tokens the next pass of reading takes."""

    length: int = FIRST_PIECE

    def took(self, began: float, ended: float) -> float:
        """A piece was read from `began` to `ended`, in seconds; returns `ended`."""
        if ended > began:
            fitting = int(self.length * PIECE_S / (ended - began))
            self.length = min(max(fitting, FIRST_PIECE // 2), LONGEST_PIECE)
        return ended


@dataclass
class LookAhead:
    """The work ahead of one block."""

    block: DraftBlock  # a chain that was sent
    over: bool = False  # may be set while the work goes on
    tokens: int = 0  # drafted so far, and
    seconds: float = 0.0  # what they took

    def work(self, steps: Iterator[None], drafted: Callable[[int, float], None]) -> Work[None]:
        """Take `steps`, one token each, until it is over; `drafted` hears of each token."""
        began = yield
        while not self.over and next(steps, self) is not self:
            ended = yield
            self.tokens, self.seconds = self.tokens + 1, self.seconds + ended - began
            drafted(1, ended - began)
            began = ended

    @property
    def token_s(self) -> float:
        """Mean seconds of a token."""
        return self.seconds / self.tokens if self.tokens else 0.0

    def wasted(self, ready: int) -> int:
        """Tokens drafted for nothing, where `ready` are still proposals: not those, nor the bonus token."""
        return max(0, self.tokens - (ready + 1 if ready else 0))
