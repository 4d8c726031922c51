"""The server drafts of one session."""

from __future__ import annotations

from hw_profiles.fading import FadingRatio
from hw_profiles.speculation import tokens_beside
from opensled.core.messages import DraftBlock
from opensled.core.trees import depth
from scheduler.estimates import DraftEstimate, Forecast
from scheduler.plan import NO_OFFER, OfferView
from verify_server.round.budget import DraftBudget
from verify_server.round.drafter import DrafterMemory, Proposal
from verify_server.round.offer import DraftLimits
from verify_server.round.sequence import Sequence
from verify_server.round.source import DraftSource

# Drafts after which half of what their lengths show is forgotten, and tokens that are assumed beforehand. Chosen.
SHARE, PRIOR = 32.0, 8.0


class ServerDrafts(DraftSource):
    """See `DraftSource`."""

    def __init__(
        self,
        estimate: DraftEstimate,
        budget: DraftBudget | None = None,
        memory: DrafterMemory | None = None,
    ) -> None:
        """`memory`: the drafter's, None = it needs none."""
        super().__init__(estimate, budget)
        self.memory = memory or DrafterMemory()
        # Of the tokens that the drafter was asked for, those that it proposed: for a new session as for the others
        self._usual = estimate.device.offered
        self.share = FadingRatio(SHARE, PRIOR * self._usual.ratio, PRIOR)

    def ask(self, most: int, limits: DraftLimits, text: Sequence, now: float) -> int:
        """The number of tokens that the drafter drafts after the step, with the plan's maximum `most`."""
        wanted = self.budget.longest(min(most, limits.max_draft), len(text), now) if most else 0
        if not wanted:
            self.memory.rest(text)
        return wanted

    def take(self, proposal: Proposal, asked: int) -> None:
        """Take the drafter's answer to a request for a chain of `asked` tokens."""
        # The last token of a draft is never computed
        self.memory.write(proposal.read, proposal.block.ids[:-1])
        block = self.arrange(proposal.block)
        self.offer, count = None, len(block.tokens)
        if count:
            self.hold(block, 0.0)
        if not proposal.unread:
            self.share.add(min(count, asked), asked)
            self._usual.add(min(count, asked), asked)
        if count:
            self.estimate.add_arrival(0.0, count, 0.0)

    def compare(self, verified: DraftBlock, more: int, device: DraftBlock, forecast: Forecast) -> None:
        """A step verified the server draft `verified` and a chain of the `device` with this `forecast`; `more`: number
        of accepted tokens beyond those of the chain."""
        if verified.tokens and device.tokens:
            own = depth(verified.tokens, verified.parents)
            independent = tokens_beside(self.estimate.forecast[:2], forecast[:2], own, len(device.tokens))
            self.estimate.add_second_draft(max(0, more), float(independent))

    def view(self, limits: DraftLimits, length: int, now: float) -> OfferView:
        """What a policy sees; by position, for many are made for each step."""
        longest, unread = self.budget.longest(limits.max_draft, length, now), self.memory.unread(length)
        if not longest or unread is None:
            return NO_OFFER
        offer = self.offer
        block = offer.block if offer else None
        return OfferView(
            len(block.tokens) if block else None,
            self.estimate.forecast,
            longest,
            depth(block.tokens, block.parents) if block and block.parents else 0,
            offer.reach if offer else (),
            0,
            None,
            0.0,
            self.share.ratio,
            unread,
        )
