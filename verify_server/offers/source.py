"""One that drafts for a session, the device and the server's drafter alike: what waits, and how well it drafts."""

from __future__ import annotations

from opensled.messages import Draft, DraftBlock
from opensled.protocol import agreed
from scheduler.estimates import DraftEstimate
from verify_server.offers.budget import DraftBudget
from verify_server.offers.offer import NO_PART, DraftLimits, Offer, Part, Room
from verify_server.trees import confidences, depth, likeliest_first, seen_of, tried, without_twins


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

    def cut(self, limits: DraftLimits, room: Room, now: float) -> Part:
        """What is verified of the draft that waits; there is one. Changes nothing."""
        offer = self.offer
        assert offer is not None
        budget = self.budget.longest(len(offer.block.tokens), len(room.text), now)
        return Part(offer, offer.cut(limits, budget, room))

    def spend(self, part: Part, length: int, now: float) -> None:
        """A step takes the draft that waited, behind a text of `length` tokens."""
        self.offer = None
        self.budget.take(len(part.verified.tokens), length, now)

    def postpone(self, part: Part, now: float) -> None:
        """The step did not verify its part: the draft waits again, unless another one came meanwhile."""
        self.budget.give_back(len(part.verified.tokens), now)
        if self.offer is None and part is not NO_PART:
            self.offer = part.offer

    def judge(self, part: Part, ids: tuple[int, ...], known: int = 0, committed: int = 0) -> int:
        """The text goes on with `ids`, of which `committed` count, where a part of its draft, or nothing, was verified;
        `known`: tokens of the draft that had proved right before. Returns how many tokens of the part stand."""
        verified, whole, stands = part.verified, part.offer.block, 0
        if known or whole.tokens:
            seen = seen_of(verified, whole)
            path = agreed(seen, ids)
            length = known + depth(seen.tokens, seen.parents)
            self.estimate.judged(length, known + len(path), tried(seen, path))
            stands = min(len(path), len(verified.tokens))
        self.budget.judged(len(verified.tokens), stands, committed)
        return stands

    def _reach(self, block: DraftBlock) -> tuple[float, ...]:
        return self.estimate.reach(confidences(block), block.parents)
