"""The time that a level of a hierarchy takes for its tokens, from the time of the level below it.

A round waits for a block of the lower level, and then for its verdict. It is cold if the lower level has nothing at
hand when it begins, for its latest tokens were taken back:

    cold = late + supply + verdict     supply: until the lower level has the block; verdict: round trip and step;
                                       late: half of its pass, where it is at work when the verdict comes

It is warm if the block before it stood whole, as well as the guess of the token behind it. What the lower level did
meanwhile counts then. With the guess at its head the next block takes next = supply * (1 + 1 / length):

    warm = cold                        one accelerator drafts and verifies by turns
    warm = max(next, verdict)          the lower level drafts ahead while the verdict travels

The mean round lasts cold - hit * (cold - warm).

A level that vets for the next one starts cold itself when its tokens are taken back. Until it has n tokens again it
takes, with P(x) of a verdict that commits x tokens,

    s(n) = cold + sum over x < n of P(x) * s(n - x),        less what the warm rounds after hits save

This is the overshoot that rounds do not end where blocks do, counted exactly; n times the mean seconds of a token would
be too little (methods of HSD, arXiv 2510.19705, whose law has no network). Means only: no jitter and no queues.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from hw_profiles.speculation import Numbers
from lab.testbed.planner.hierarchy_blocks import Blocks


class Ahead(Enum):
    """What the lower level does while its block is judged."""

    NOTHING = "nothing"
    DRAFTS = "drafts ahead"


@dataclass(frozen=True)
class Rounds:
    """Rounds between two levels. Times in seconds."""

    blocks: Blocks
    supply_s: float  # until the lower level has a block, from a cold start
    rtt_s: float
    step_s: float  # of the upper level
    ahead: Ahead
    pass_s: float = 0.0  # of the lower level, for one token
    wait: float = 0.0  # steps for which a block waits before its own

    @property
    def verdict_s(self) -> float:
        """From a block to its verdict."""
        return self.rtt_s + (1 + self.wait) * self.step_s

    @property
    def next_s(self) -> float:
        """Until the lower level has the block behind another one."""
        return self.supply_s * (1 + 1 / self.blocks.mean_length)

    @property
    def late_s(self) -> float:
        """Until the lower level has ended a pass in vain, where it is still at work when the verdict comes."""
        is_late = self.ahead is Ahead.DRAFTS and self.next_s > self.verdict_s
        return self.pass_s / 2 if is_late else 0.0

    @property
    def cold_s(self) -> float:
        """See the top of this file."""
        return self.late_s + self.supply_s + self.verdict_s

    @property
    def warm_s(self) -> float:
        """See the top of this file."""
        if self.ahead is Ahead.NOTHING:
            return self.cold_s
        return min(self.cold_s, max(self.next_s, self.verdict_s))

    @property
    def ready_s(self) -> float:
        """What the first round of an answer saves where its block is there by the first token, and begins with it."""
        return (1 - float(self.blocks.tokens[1])) * (self.cold_s - self.step_s)

    @cached_property
    def token_s(self) -> float:
        """Mean seconds of a token, in the long run."""
        return (self.cold_s - self.blocks.hit * (self.cold_s - self.warm_s)) / self.blocks.mean_tokens

    def restarts(self, most: int) -> Numbers:
        """The same as `supplies` where the tokens before were taken back from above: while it waits for a block, the
        upper level computes what came in their place."""
        extra_s = max(0.0, self.step_s - self.rtt_s - self.supply_s)
        return self.supplies(most) + extra_s * (np.arange(most + 1) > 0)

    def supplies(self, most: int) -> Numbers:
        """Mean seconds from a cold start until there are 0, 1, ..., `most` tokens."""
        tokens, saved = self.blocks.tokens, np.cumsum(self.blocks.hits) * (self.cold_s - self.warm_s)
        found = np.zeros(most + 1)
        for count in range(1, most + 1):
            span = min(len(tokens), count)  # verdicts of fewer tokens, after which more is wanted
            found[count] = (
                self.cold_s + tokens[1:span] @ found[count - 1 : count - span : -1] - saved[span - 1]
            )
        return found
