"""What a step of the emulated server costs: the profile's law, for the target and for a draft beside it.

The one place that says so: emulated accelerator and simulator both charge by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hw_profiles.step_cost import DraftingCost, StepCost, TargetCost
from lab.testbed.emulation.draft_head import DraftCost, HeadCost
from lab.testbed.fleet import Server
from verify_server.drafting.model import READ
from verify_server.engine.base import Segment


class StepPiece(NamedTuple):
    """What one step computes of one session."""

    tokens: int  # positions computed, padding and draft included
    end: int  # positions of the session after that, without what it held before its request

    @classmethod
    def of(cls, segment: Segment) -> StepPiece:
        """Of a segment that the engine computes."""
        return cls(len(segment.tokens), segment.start + len(segment.tokens))


@dataclass(frozen=True)
class ResidentCost:
    """`StepCost` of a model for whose server sessions begin with their requests: it does not count the `context` KV
    positions that each of them is charged for besides."""

    model: StepCost
    context: int
    draft: DraftCost | None = None  # beside a target: a head writes its context in the target's steps
    others: int = 0  # sessions of which no step says anything: each of them has a token in every one

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        everybody = sessions + self.others
        seconds = self.model.verify_s(tokens + self.others, contexts + everybody * self.context)
        return seconds + (self.draft.context_s(tokens) if isinstance(self.draft, HeadCost) else 0.0)


@dataclass(frozen=True)
class StepLaw:
    """`context` KV positions were there in every session before its request came, and are read in every step.

    A pass of a `draft` on the same accelerator costs what a step of a target of its size costs; a draft head has one
    pass, over the newest row of each text.
    """

    target: TargetCost
    draft: DraftCost | None = None
    context: int = 0
    others: int = 0  # see `ResidentCost`

    @classmethod
    def of(cls, server: Server) -> StepLaw:
        """Of a server with an accelerator; raises NotFound for a profile that does not exist."""
        return cls(server.cost, server.draft_cost, server.context, server.others)

    @property
    def cost(self) -> ResidentCost:
        """Of the target, as a scheduling policy reckons with it."""
        return ResidentCost(self.target, self.context, self.draft, self.others)

    def step_s(self, pieces: Sequence[StepPiece]) -> float:
        """Seconds of one step of the target over `pieces`."""
        return self.cost.verify_s(*self._load(pieces))

    def pass_s(self, pieces: Sequence[StepPiece]) -> float:
        """Seconds of one pass of the draft over `pieces`; AssertionError without a draft."""
        assert self.draft is not None, "only a server with a draft of its own has passes"
        return ResidentCost(self.draft, self.context).verify_s(*self._load(pieces))

    def _load(self, pieces: Sequence[StepPiece]) -> tuple[int, int, int]:
        """Positions computed, positions read, those computed included, and sessions."""
        return sum([piece.tokens for piece in pieces]), sum([piece.end for piece in pieces]), len(pieces)

    @property
    def drafting(self) -> DraftingCost | None:
        """Of the draft, as a policy reckons with it before the first step; None without one.

        A pass reads the weights, and each token of it the KV of its session. What a token computes is the mean of a
        pass over so much text as the draft reads at once. A head reads no text, and attends once for a whole draft.
        """
        if self.draft is None:
            return None
        pass_s = self.draft.verify_s(1, 0)
        attend_s = self.draft.verify_s(1, self.context) - pass_s
        if isinstance(self.draft, HeadCost):
            most = self.draft.passes(int(self.draft.longest))
            return DraftingCost(pass_s, most * attend_s / self.draft.longest, 0.0, max_passes=most)
        read_s = (self.draft.verify_s(READ, 0) - pass_s) / READ
        return DraftingCost(pass_s, read_s + attend_s, read_s)
