"""What a step of the emulated server costs: the profile's law, for the target and for a draft beside it.

The one place that says so: emulated accelerator and simulator both charge by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hw_profiles.step_cost import TargetCost
from opensled_testbed.fleet import Server
from verify_server.engine.base import Segment


class StepPiece(NamedTuple):
    """What one step computes of one session."""

    tokens: int  # positions computed, padding and draft included
    end: int  # positions of the session after that, without what it held before its request
    drafted: int = 0  # of `tokens`

    @classmethod
    def of(cls, segment: Segment) -> StepPiece:
        """Of a segment that the engine computes."""
        return cls(len(segment.tokens), segment.start + len(segment.tokens), max(0, segment.rows - 1))


@dataclass(frozen=True)
class ResidentCost:
    """`StepCost` of a target for whose server sessions begin with their requests: it does not count the `context` KV
    positions that each of them is charged for besides."""

    target: TargetCost
    context: int

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        return self.target.verify_s(tokens, contexts + sessions * self.context)


@dataclass(frozen=True)
class StepLaw:
    """`context` KV positions were there in every session before its request came, and are read in every step.

    With a `draft` on the same accelerator a step also pays for the drafts that it verifies, one forward pass of the
    draft model over all drafting sessions for each token of the longest draft, and for the draft model's own reading
    of prompts.
    """

    target: TargetCost
    draft: TargetCost | None = None
    context: int = 0

    @classmethod
    def of(cls, server: Server) -> StepLaw:
        """Of a server with an accelerator; raises NotFound for a profile that does not exist."""
        return cls(server.cost, server.draft_cost, server.context)

    @property
    def cost(self) -> ResidentCost:
        """Of the target, as a scheduling policy reckons with it."""
        return ResidentCost(self.target, self.context)

    def step_s(self, pieces: Sequence[StepPiece]) -> float:
        """Seconds of one step over `pieces`."""
        seconds = self.target.verify_s(sum(piece.tokens for piece in pieces), self._contexts(pieces))
        return seconds + self.drafting_s(pieces)

    def drafting_s(self, pieces: Sequence[StepPiece]) -> float:
        """Those of them that the draft takes, before the target begins; 0 without one."""
        if self.draft is None:
            return 0.0
        drafting = [piece for piece in pieces if piece.drafted]
        longest = max((piece.drafted for piece in drafting), default=0)
        prompts = [piece for piece in pieces if piece.tokens - piece.drafted > 1]
        reading_s = self.draft.verify_s(sum(piece.tokens for piece in prompts), self._contexts(prompts))
        return self.draft.draft_s(longest, len(drafting), self._contexts(drafting)) + reading_s

    def _contexts(self, pieces: Sequence[StepPiece]) -> int:
        """KV positions read over all `pieces`, those computed in this step included."""
        return sum(self.context + piece.end for piece in pieces)
