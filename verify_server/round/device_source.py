"""The drafts of a session's device: their times, the hints for the device, and the turn."""

from __future__ import annotations

from collections import deque
from math import inf

from opensled.core.messages import Draft, DraftBlock
from opensled.core.turns import Turn
from scheduler.estimates import DraftEstimate
from scheduler.plan import OfferView
from verify_server.engine.trees import depth
from verify_server.round.budget import DraftBudget
from verify_server.round.offer import DraftLimits, Offer
from verify_server.round.source import DraftSource

# Latest verdicts of which the time is known; drafts on older ones are slow in any case.
VERDICTS_TIMED = 64


class DeviceDrafts(DraftSource):
    """See `DraftSource`."""

    def __init__(self, estimate: DraftEstimate | None = None, budget: DraftBudget | None = None) -> None:
        """Without an `estimate`, the device is unknown."""
        super().__init__(estimate or DraftEstimate(), budget)
        self.turn = Turn(self.estimate.device.hint)
        # When the verdict left after which it now drafts; -inf = it rested, so it may have to read a long text first
        self.asked_since = 0.0
        self._verdicts: deque[tuple[int, float]] = deque(maxlen=VERDICTS_TIMED)  # (length, time)

    def begin(self, now: float) -> None:
        """The session is admitted."""
        self.asked_since = now

    def reopen(self) -> None:
        """A new stream: drafts that the device sends again after an outage do not count for its times."""
        self.offer = None
        self.turn.reopen(self.turn.hint)
        self._verdicts.clear()

    def receive(self, draft: Draft, now: float) -> None:
        """A new draft arrives and replaces a waiting one: learn how long the device takes."""
        self.offer = None
        self.turn.draft(draft)
        block = draft.block
        length = depth(block.tokens, block.parents)
        if not length:
            return
        for verdict, left in reversed(self._verdicts):  # nearly always the latest one
            if verdict == block.base:
                self.estimate.add_arrival(now - left, length, draft.seconds)
                return

    def drop(self, draft: Draft, length: int, stands: int, now: float) -> None:
        """The text of `length` tokens has passed a draft, with `stands` right tokens; a verdict reports this."""
        self._ask(length, now)
        block = draft.block
        passed = max(0, min(depth(block.tokens, block.parents), length - block.base))
        self.estimate.add_verdict(passed, stands)

    def answer(self, draft: Draft | None, hint: int | None, length: int, now: float) -> None:
        """A verdict leaves: it makes the text `length` tokens long, answers `draft`, and carries the `hint`."""
        if draft is not None:
            self._ask(length, now)
        if self.turn.verdict(draft.counter if draft else 0, hint):
            self.asked_since = -inf
        if hint is not None:
            self.estimate.device.hint = hint

    def hold_again(self, taken: Offer, length: int, now: float) -> None:
        """A step decided nothing: its draft must still be answered, but is not verified again."""
        if self.offer is None and taken.draft is not None:
            self.offer = Offer(DraftBlock(length), now, (), taken.draft)

    def hint(self, advice: int | None, limits: DraftLimits, length: int, now: float) -> int | None:
        """The hint for the next verdict; `advice`: the hint of the policy."""
        return self.budget.hint(advice, self.budget.longest(limits.max_draft, length, now))

    def view(self, limits: DraftLimits, length: int, now: float) -> OfferView:
        """What a policy sees; by position, for many are made for each step."""
        offer, turn, estimate = self.offer, self.turn, self.estimate
        block = offer.block if offer else None
        return OfferView(
            len(block.tokens) if block else None,
            estimate.forecast if turn.latest or estimate.drafts else None,
            self.budget.longest(limits.max_draft, length, now),
            depth(block.tokens, block.parents) if block and block.parents else 0,
            offer.reach if offer else (),
            limits.min_draft,
            turn.hint,
            self.asked_since,
        )

    def _ask(self, length: int, now: float) -> None:
        """A verdict leaves on which the device, which has just drafted, drafts again.

        A first draft, or one after a rest, follows the reading of a long text: its time says nothing of the next one.
        """
        self.asked_since = now
        self._verdicts.append((length, now))
