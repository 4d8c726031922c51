"""The edge loop: draft, send, obey the verdict, hand its tokens on. Start reading here, at `generate`.

The loop talks to a `Verifier`, the keeper of one sequence's truth.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from edge_client.round.commits import Commit, Commits
from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.drafting import Drafting
from opensled.core.messages import Draft, DraftBlock, Limits, SamplingParams, Verdict
from opensled.core.protocol import Truth, rebase
from opensled.core.sampling import sampler
from opensled.core.turns import Turn, hear


class OpenSequence(Protocol):
    """One open sequence as its device knows it: the reader tells `truth` and `turn` each verdict (`turns.hear`)."""

    truth: Truth
    turn: Turn
    limits: Limits


class Verifier(OpenSequence, Protocol):
    """The keeper of one open sequence's truth: a server behind a link, or a bigger server behind a server.

    Verdicts also come unasked (the server decodes when no draft comes), so asking and hearing are two calls.
    """

    noise_key: bytes
    draft_probs: bool  # whether drafts must name the distribution they were drawn from

    async def submit(self, draft: Draft) -> None:
        """Propose a block; a later one replaces it. Never waits for the verdict."""

    async def next_verdict(self) -> Verdict:
        """The next verdict; it never leaves a gap behind `truth`. Raises what ended the sequence."""

    async def close(self) -> None:
        """The reader is done: free everything."""


async def generate(
    verifier: Verifier, drafter: Drafting, params: SamplingParams
) -> AsyncGenerator[Commit, None]:
    """Yield what the target commits to an open sequence, until it is finished.

    The drafter only ever helps: it works while verdicts flow, and the text is the target's own without it.
    """
    truth = verifier.truth
    drafter.begin(truth, sampler(params, verifier.noise_key, verifier.draft_probs, truth.prompt_length))
    exchange = Exchange(verifier, drafter, params)
    exchange.draft()
    hearing = asyncio.ensure_future(verifier.next_verdict())
    try:
        while not verifier.truth.finish_reason:
            waited_for: set[asyncio.Future[Any]] = {hearing}
            if exchange.drafting:
                waited_for.add(exchange.drafting)
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            commit = exchange.hear(hearing.result()) if hearing.done() else None
            draft = exchange.take_draft()
            if draft is not None:
                await verifier.submit(draft)
                exchange.look_ahead(draft.block)
            if commit is not None:
                yield commit  # nothing more is read until the reader comes back
                if not verifier.truth.finish_reason:  # else there is nothing more to hear
                    hearing = asyncio.ensure_future(verifier.next_verdict())
    finally:
        drafter.interrupt()
        # First the farewell, then the cancel: a cancelled read would take the whole stream with it.
        await verifier.close()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


class Exchange:
    """The exchange between a device and the verifier of one open sequence: a block that is being drafted, or was sent.

    No I/O: `generate` sends what `drafted` returns.
    """

    def __init__(self, sequence: OpenSequence, drafter: Drafting, params: SamplingParams) -> None:
        self.drafting: asyncio.Future[Drafted] | None = None
        self._sequence, self._drafter, self._params = sequence, drafter, params
        self._counter = 0  # of the latest draft
        self._rewinds = 0  # of the truth, when the block that is being drafted began
        self._commits = Commits()
        self._reads_on = False  # the latest block was empty, for the drafter has much to read

    def draft(self) -> None:
        """Draft a continuation of the truth, unless a block is being drafted or the server has no use for one."""
        if self.drafting is None and self._sequence.turn.may_draft:
            truth = self._sequence.truth
            self._rewinds = truth.rewinds
            self.drafting = self._drafter.draft(truth, self._budget(len(truth)))

    def take_draft(self) -> Draft | None:
        """The finished block to send; None = there is none, or it is out of date."""
        if self.drafting is None or not self.drafting.done():
            return None
        turn, truth = self._sequence.turn, self._sequence.truth
        (block, seconds, self._reads_on), self.drafting = _cut(self.drafting.result(), turn), None
        if truth.rewinds != self._rewinds or (not turn.server_drives and rebase(block, truth.tokens) is None):
            self.draft()  # the server went on without it, and elsewhere
        elif block.tokens or not turn.server_drives:  # an empty block hands the drive back to the server
            self._counter += 1
            return Draft(self._counter, block, seconds)
        return None

    def look_ahead(self, block: DraftBlock) -> None:
        """Draft ahead of a block that was sent, until its verdict. After an empty block, which gave the drive back to
        the server because there is much to read, read on instead."""
        if block.tokens and self._sequence.turn.unanswered:
            self._drafter.look_ahead(block, self._budget(block.base + len(block.tokens) + 1))
        elif self._reads_on:
            self.draft()

    def hear(self, verdict: Verdict) -> Commit:
        """Extend the truth and take the turn that follows; the drafter goes on at once."""
        truth = self._sequence.truth
        known, turn = (truth.confirmed, len(truth)), self._sequence.turn
        news, answered = hear(verdict, truth, turn)
        block = answered.block if answered else None
        if truth.finish_reason:
            self._drafter.interrupt()
        else:
            self._drafter.hear(truth)
            self.draft()
        return self._commits.of(verdict, news, known, block, truth)

    def _budget(self, base: int) -> BlockBudget:
        """Draft tokens that can still commit from `base` on; the very last token of a sequence needs no draft."""
        truth, limits = self._sequence.truth, self._sequence.limits
        last = min(truth.prompt_length + self._params.max_tokens, limits.context_length)
        turn = self._sequence.turn
        room = max(0, min(last - base - 1, limits.max_draft))
        awaited = not turn.server_drives
        return BlockBudget(room, limits.max_tree, turn.hint, awaited=awaited, least=limits.min_draft)


def _cut(drafted: Drafted, turn: Turn) -> Drafted:
    """What of a chain the hint still allows, and that part's share of the seconds."""
    block, seconds, _ = drafted
    length, allowed = len(block.tokens), turn.limit(len(block.tokens))
    if block.parents or allowed == length:
        return drafted
    return Drafted(block.first(allowed), seconds * allowed / length)
