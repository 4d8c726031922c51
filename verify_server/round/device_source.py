"""The drafts of a session's device: their times, the hints for the device, and the turn."""

from __future__ import annotations

from collections import deque
from math import inf

from opensled.core.messages import Draft, DraftBlock, HintReason, Why
from opensled.core.trees import depth
from opensled.core.turns import Turn
from scheduler.estimates import DraftEstimate
from scheduler.plan import OfferView, Slice
from verify_server.round.budget import DraftBudget
from verify_server.round.offer import DraftLimits, Offer
from verify_server.round.source import DraftSource

# Latest verdicts of which the time is known; drafts on older ones are slow in any case.
VERDICTS_TIMED = 64
NOT_TOLD = HintReason()


class DeviceDrafts(DraftSource):
    """See `DraftSource`."""

    def __init__(self, estimate: DraftEstimate | None = None, budget: DraftBudget | None = None) -> None:
        """Without an `estimate`, the device is unknown."""
        super().__init__(estimate or DraftEstimate(), budget)
        known = self.estimate.device
        self.turn = Turn(known.hint, known.why)
        self._why = self._told = known.why  # of the hint that leaves next; as the device knows it
        # A policy that knows nothing of the device, or gives no advice, would never end the rest of an earlier answer.
        self.budget.resting = known.hint == 0
        # When the verdict left after which it now drafts; -inf = it rested, so it may have to read a long text first
        self.asked_since = 0.0
        self._verdicts: deque[tuple[int, float]] = deque(maxlen=VERDICTS_TIMED)  # (length, time)

    def begin(self, now: float) -> None:
        """The session is admitted."""
        self.asked_since = now

    def reopen(self) -> None:
        """A new stream: drafts that the device sends again after an outage do not count for its times."""
        self.offer = None
        self.turn.reopen(self.turn.hint, self.turn.why)
        self._told = self.turn.why
        self._verdicts.clear()

    def receive(self, draft: Draft, now: float) -> None:
        """A new draft arrives and replaces a waiting one: learn how long the device takes."""
        self.offer = None
        self.turn.draft(draft)
        block = draft.block
        length = depth(block.tokens, block.parents)
        if not length:
            return
        known = self.estimate.device
        known.add_draft()
        for verdict, left in reversed(self._verdicts):  # nearly always the latest one
            if verdict == block.base:
                self.estimate.add_arrival(now - left, length, draft.seconds)
                return
        if draft.seconds and not known.drafts and (draft.counter > 1 or known.rested):
            # Its drafts are late for every verdict: by its own word at least something is known of it. The very first
            # one may have followed the reading of a long text.
            self.estimate.add_arrival(known.delay_s + draft.seconds, length, draft.seconds)

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
        if self.turn.verdict(draft.counter if draft else 0, hint, self._why):
            self.asked_since = -inf
        if hint is not None:
            known = self.estimate.device
            known.hint, known.why = hint, self.turn.why

    def news(self) -> Why:
        """Why it rests, if the device has not been told."""
        told, self._told = self._told, self.turn.why
        return None if told is self._told else self._told

    def hold_again(self, taken: Offer, length: int, now: float) -> None:
        """A step decided nothing: its draft must still be answered, but is not verified again."""
        if self.offer is None and taken.draft is not None:
            self.offer = Offer(DraftBlock(length), now, (), taken.draft)

    def hint(self, piece: Slice, limits: DraftLimits, length: int, now: float) -> int | None:
        """The hint for the next verdict, from that of the policy."""
        longest = self.budget.longest(limits.max_draft, length, now)
        if not longest or piece.hint == 0:
            cause = "" if longest or not limits.max_draft else self.budget.cause(length) or "quota"
            known = self.turn.why or NOT_TOLD
            # A reason of the policy has numbers, and holds until its next one.
            earlier = known if known.tokens else NOT_TOLD
            why = NOT_TOLD._replace(cause=cause) if cause else piece.why or earlier
            self._why = known if why == known else why
        return self.budget.hint(piece.hint, longest)

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
