"""Look-ahead: while a verdict travels the drafter goes on.

It bets that the whole block is accepted, and that the token it drafts next is the bonus token, which with shared noise
is as likely as any draft token. When the verdict proves it right, what it drafted after that is the head of the next
block, and goes out at once; else the work was in vain, and cost nobody but the device a moment: it stops between two
tokens as soon as the verdict is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edge_client.drafters.base import Drafter
from opensled.messages import DraftBlock
from opensled.protocol import Truth, rebase


@dataclass
class LookAhead:
    """The work ahead of one block: done in the drafter's thread, ended from the event loop."""

    block: DraftBlock  # a chain that was sent
    over: bool = False
    tokens: int = 0  # drafted so far, and
    seconds: float = 0.0  # what they took

    def work(self, drafter: Drafter, length: int, drafted: Callable[[int, float], None]) -> None:
        """Draft on until it is over, `length` tokens of the next block at most; `drafted` hears of each token."""
        steps = drafter.look_ahead(self.block.tokens, length)
        while not self.over:
            started = time.monotonic()
            if next(steps, self) is self:
                return
            seconds = time.monotonic() - started
            self.tokens, self.seconds = self.tokens + 1, self.seconds + seconds
            drafted(1, seconds)

    def heard(self, truth: Truth) -> None:
        """The truth grew: is it worth while to go on?"""
        self.over = self.over or rebase(self.block, truth.tokens) is None

    @property
    def token_s(self) -> float:
        """Seconds that a token took, on the average."""
        return self.seconds / self.tokens if self.tokens else 0.0

    def wasted(self, ready: int) -> int:
        """Tokens drafted in vain, where `ready` of them are proposals still: not those, nor the guess before them."""
        return max(0, self.tokens - (ready + 1 if ready else 0))
