"""One that drafts for a session, the device and the server's drafter alike: what waits, and how well it drafts."""

from __future__ import annotations

from opensled.core.messages import Draft, DraftBlock
from opensled.core.protocol import follow_path
from scheduler.estimates import DraftEstimate
from verify_server.engine.trees import (
    confidences,
    depth,
    likeliest_first,
    list_trials,
    observed_part,
    without_twins,
)
from verify_server.round.budget import DraftBudget
from verify_server.round.offer import NO_DRAFT, NOTHING, DraftLimits, Offer, Text


class DraftSource:
    """Every `now` is in seconds on the caller's clock."""

    def __init__(self, estimate: DraftEstimate, budget: DraftBudget | None = None) -> None:
        """`estimate`: of its drafts; `budget`: how much of them is verified, None = no limit."""
        self.estimate, self.budget = estimate, budget or DraftBudget()
        self.offer: Offer | None = None  # the draft that waits

    def arrange(self, block: DraftBlock) -> DraftBlock:
        """A tree without twins, its likeliest tokens first; a chain as it is."""
        if not block.parents:
            return block
        tree = without_twins(block)
        return likeliest_first(tree, self._reach(tree))

    def hold(self, block: DraftBlock, since: float, draft: Draft | None = None) -> None:
        """From now on `block` waits; see `Offer`."""
        self.offer = Offer(block, since, self._reach(block), draft)

    def cut(
        self, limits: DraftLimits, text: Text, most: int | None, now: float, beside: DraftBlock = NO_DRAFT
    ) -> Offer:
        """The draft that waits, with what of it is verified; there is one. Changes nothing. `most`: tokens that the
        plan has for it, None = all; `beside`: see `Offer.cut`."""
        offer = self.offer
        assert offer is not None
        longest = len(offer.block.tokens)
        budget = self.budget.longest(longest if most is None else min(most, longest), len(text), now)
        block, since, reach, draft, _ = offer
        return Offer(block, since, reach, draft, offer.cut(limits, budget, text, beside))

    def spend(self, taken: Offer, length: int, now: float) -> None:
        """A step takes the draft that waited, behind a text of `length` tokens."""
        self.offer = None
        self.budget.take(len(taken.verified.tokens), length, now)

    def postpone(self, taken: Offer, now: float) -> None:
        """The step did not verify it: the draft waits again, unless another one came meanwhile."""
        self.budget.give_back(len(taken.verified.tokens), now)
        if self.offer is None and taken is not NOTHING:
            self.offer = taken._replace(verified=NO_DRAFT)

    def judge(self, taken: Offer, ids: tuple[int, ...], known: int = 0, committed: int = 0) -> int:
        """The text goes on with `ids`, of which `committed` count, where some of its draft, or nothing, was verified;
        `known`: tokens of the draft that had proved right before. Returns how many of the verified tokens stand."""
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
    """For each token of a chain behind the first `seen` the chance that it stands if they do; () = its drafter does not
    say."""
    if taken.block.parents or not taken.reach or not 0 < seen < len(taken.reach):
        return ()
    given = taken.reach[seen - 1]
    return tuple([chance / given for chance in taken.reach[seen:]]) if given else ()
