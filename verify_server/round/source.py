"""A source of drafts for one session, a device or the server's drafter: its waiting draft, and its acceptance."""

from __future__ import annotations

from opensled.core.messages import Draft, DraftBlock
from opensled.core.protocol import follow_path
from opensled.core.trees import (
    confidences,
    depth,
    likeliest_first,
    list_trials,
    observed_part,
    without_twins,
)
from scheduler.estimates import DraftEstimate
from verify_server.round.budget import DraftBudget
from verify_server.round.offer import NO_DRAFT, DraftLimits, Offer
from verify_server.round.sequence import Sequence


class DraftSource:
    """Every `now` is in seconds on the caller's clock."""

    def __init__(self, estimate: DraftEstimate, budget: DraftBudget | None = None) -> None:
        """`estimate`: forecasts of its drafts; `budget`: how many draft tokens are verified, None = no limit."""
        self.estimate, self.budget = estimate, budget or DraftBudget()
        self.offer: Offer | None = None  # the draft that waits

    def arrange(self, block: DraftBlock) -> DraftBlock:
        """Remove twins from a tree, and put its likeliest tokens first; a chain stays as it is."""
        if not block.parents:
            return block
        tree = without_twins(block)
        return likeliest_first(tree, self._reach(tree))

    def hold(self, block: DraftBlock, since: float, draft: Draft | None = None) -> None:
        """Hold `block` as the waiting draft; see `Offer`."""
        self.offer = Offer(block, since, self._reach(block), draft)

    def cut(
        self, limits: DraftLimits, text: Sequence, most: int | None, now: float, beside: DraftBlock = NO_DRAFT
    ) -> Offer:
        """The waiting draft (there must be one), with the part to verify. Changes nothing. `most`: maximum number of
        tokens by the plan, None = all; `beside`: see `Offer.cut`."""
        offer = self.offer
        assert offer is not None
        longest = len(offer.block.tokens)
        budget = self.budget.longest(longest if most is None else min(most, longest), len(text), now)
        block, since, reach, draft, _ = offer
        return Offer(block, since, reach, draft, offer.cut(limits, budget, text, beside))

    def spend(self, taken: Offer, length: int, now: float) -> None:
        """A step takes the waiting draft, after a text of `length` tokens."""
        self.offer = None
        self.budget.take(len(taken.verified.tokens), length, now)

    def judge(self, taken: Offer, ids: tuple[int, ...], known: int = 0, committed: int = 0) -> int:
        """Learn from a step that verified some of the draft, or nothing, and decided that the text goes on with `ids`.
        `committed`: number of committed tokens; `known`: draft tokens that were known to be right before the step.
        Returns the number of accepted tokens."""
        verified, whole, stands = taken.verified, taken.block, 0
        if known or whole.tokens:
            seen = observed_part(verified, whole)
            path = follow_path(seen, ids)
            length = known + depth(seen.tokens, seen.parents)
            unseen = _behind(len(seen.tokens), taken)
            self.estimate.add_verdict(length, known + len(path), list_trials(seen, path), unseen)
            stands = min(len(path), len(verified.tokens))
        self.budget.add_verdict(len(verified.tokens), stands, committed)
        return stands

    def _reach(self, block: DraftBlock) -> tuple[float, ...]:
        return self.estimate.reach(confidences(block), block.parents)


def _behind(seen: int, taken: Offer) -> tuple[float, ...]:
    """For each token of a chain after the first `seen`, the chance that it is accepted if these are; () = the drafter
    gives none."""
    if taken.block.parents or not taken.reach or not 0 < seen < len(taken.reach):
        return ()
    given = taken.reach[seen - 1]
    return tuple([chance / given for chance in taken.reach[seen:]]) if given else ()
