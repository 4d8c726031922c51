"""What drafting on a device brings its user: the law of one round, in closed form.

A round drafts k tokens, travels, waits for the server's answer, and commits E(k) tokens (hw_profiles/speculation.py):

    round = k * draft + RTT + answer - hidden

A device that looks ahead drafts the next block while the verdict travels. That counts if the whole block and the guess
of the token after it are right, as likely as k+1 draft tokens: hidden = a^(k+1) * min(k * draft, RTT + answer).
Without drafts the round trip does not slow the server down. Means only: no jitter and no queues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hw_profiles.speculation import uniform_tokens

LONGEST = 16  # draft tokens: the server's default limit
WORTH = 1.05  # smaller gains count as none: the law is not that exact
STEPS = 1.5  # of a busy server, from a block to its answer: half of one under way, and one of its own


@dataclass(frozen=True)
class RoundCosts:
    """What the rounds between one device and one server consist of, in seconds."""

    draft_s: float  # for one draft token
    rtt_s: float  # round trip of a small message
    answer_s: Callable[[int], float]  # from a block's arrival to its verdict, by its length
    own_s: float  # for a token that the server decodes by itself
    acceptance: float  # 0 to 1

    def tokens(self, length: int) -> float:
        """Tokens that a round with `length` draft tokens commits on average."""
        return uniform_tokens(self.acceptance, length)

    def seconds(self, length: int) -> float:
        """Of such a round."""
        drafting, verdict = length * self.draft_s, self.rtt_s + self.answer_s(length)
        return drafting + verdict - self.acceptance ** (length + 1) * min(drafting, verdict)

    def rate(self, length: int) -> float:
        """Tokens/s of the user; without a draft, those of the server's own decoding."""
        return self.tokens(length) / self.seconds(length) if length else 1 / self.own_s

    def best(self, longest: int = LONGEST) -> Gain:
        """The draft length from 1 to `longest` that gives most tokens/s, and what it gives."""
        length = max(range(1, longest + 1), key=self.rate)
        return Gain(length, self.rate(length), self.rate(0))


@dataclass(frozen=True)
class Gain:
    """Drafting against the server's own decoding."""

    length: int  # best draft length
    rate: float  # tokens/s with it
    own_rate: float  # tokens/s without any draft

    @property
    def times(self) -> float:
        return self.rate / self.own_rate

    @property
    def pays(self) -> bool:
        return self.times >= WORTH
