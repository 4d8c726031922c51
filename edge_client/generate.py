"""The edge loop: draft, send, obey the verdict, hand its tokens on. Start reading here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from edge_client.answer import Origin
from edge_client.draft_job import BlockBudget, Drafted
from edge_client.drafting import Drafting
from edge_client.verifier import Verifier
from opensled.errors import ProtocolError
from opensled.messages import Draft, DraftBlock, SamplingParams, TokenLogprobs, Verdict
from opensled.protocol import agreed, rebase
from opensled.sampling import sampler


@dataclass(frozen=True)
class Commit:
    """Newly committed tokens, and what a draft had to do with them."""

    tokens: tuple[int, ...]
    drafted: int  # length of the draft this answers; 0 = decoded by the server unasked
    accepted: int  # how many of `tokens` came from that draft
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each of `tokens`, when asked for
    whole: bool = False  # a whole path of that draft stands, so that a token after it is the bonus token

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Who wrote each of `tokens`. After a stale draft come tokens that the server decoded meanwhile."""
        others = len(self.tokens) - self.accepted
        own: Origin = "bonus" if self.whole else "recovered"
        if others > 1 or not self.drafted:
            own = "server"
        written: list[Origin] = ["accepted"] * self.accepted
        return (*written, *([own] * others))


async def generate(
    verifier: Verifier, drafter: Drafting, params: SamplingParams
) -> AsyncGenerator[Commit, None]:
    """Yield what the target commits to an open sequence, until it is finished.

    The drafter only ever helps: it works while verdicts flow, and the text is the target's own without it.
    """
    drafter.begin(verifier.truth, sampler(params, verifier.noise_key, verifier.draft_probs))
    exchange = Exchange(verifier, drafter, params)
    exchange.draft()
    hearing = asyncio.ensure_future(verifier.next_verdict())
    try:
        while not verifier.truth.finish_reason:
            waited_for: set[asyncio.Future[Any]] = {hearing}
            if exchange.drafting:
                waited_for.add(exchange.drafting)
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if exchange.drafting and exchange.drafting.done():
                await exchange.send(exchange.drafting.result())
            if hearing.done():
                yield exchange.hear(hearing.result())
                if not verifier.truth.finish_reason:  # else there is nothing more to hear
                    hearing = asyncio.ensure_future(verifier.next_verdict())
    finally:
        drafter.interrupt()
        # First the farewell, then the cancel: a cancelled read would take the whole stream with it.
        await verifier.close()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


class Exchange:
    """What is under way between a device and the verifier of one sequence: a block being drafted, or one sent."""

    def __init__(self, verifier: Verifier, drafter: Drafting, params: SamplingParams) -> None:
        self.drafting: asyncio.Future[Drafted] | None = None
        self._verifier, self._drafter, self._params = verifier, drafter, params
        # 0 = the server decodes by itself, and nothing is drafted until it says otherwise
        self._hint = verifier.hint
        self._sent = Draft(0, DraftBlock(0))  # the latest draft
        self._sent_at = 0.0
        self._answered, self._server_drives = True, True
        # When the latest verdict came that the server decoded by itself, 0 = something else
        self._streamed_at = 0.0

    def draft(self) -> None:
        """Draft what is to follow the truth, if nothing else is under way and the server has use for it."""
        if self._answered and self.drafting is None and self._hint != 0:
            self.drafting = self._drafter.draft(self._verifier.truth, self._room(len(self._verifier.truth)))

    async def send(self, drafted: Drafted) -> None:
        """A block is drafted. The drafter then works ahead on what may follow it, until the truth is known."""
        self.drafting = None
        block, seconds = _cut(drafted, self._verifier.hint)
        if not self._server_drives and rebase(block, self._verifier.truth.tokens) is None:
            self.draft()  # the server went on without it, and elsewhere
        elif block.tokens or not self._server_drives:  # an empty block hands the drive back to the server
            self._sent, self._sent_at = Draft(self._sent.counter + 1, block, seconds), time.monotonic()
            self._answered = self._server_drives = not block.tokens
            await self._verifier.submit(self._sent)
            if block.tokens:
                self._drafter.look_ahead(block, self._room(block.base + len(block.tokens) + 1))

    def hear(self, verdict: Verdict) -> Commit:
        """Extend the truth; what the verdict confirms of the work ahead goes out at once."""
        truth = self._verifier.truth
        base, news = len(truth), truth.extend(verdict) or ()
        answers_draft = not self._answered and verdict.answers == self._sent.counter
        self._answered = self._answered or answers_draft
        rested, self._hint = self._hint == 0, self._verifier.hint
        # A server that let the device rest and hints at a draft again waits for it, be it empty. Without advice it is
        # another server, to which the sequence has gone.
        is_asked = rested and bool(self._hint)
        self._server_drives = self._hint == 0 or (self._server_drives and not is_asked)
        self._learn(news, answers_draft)
        if truth.finish_reason:
            self._drafter.interrupt()
        else:
            self._drafter.heard(truth)
            self.draft()
        return _commit(news, base, verdict, self._sent.block if answers_draft else None)

    def _learn(self, news: tuple[int, ...], answers_draft: bool) -> None:
        """Tell the rule of blocks what came of the latest one, or how fast the server is by itself."""
        now, stop, truth = time.monotonic(), self._drafter.stop, self._verifier.truth
        if answers_draft:
            block = self._sent.block
            stop.answered(block, len(agreed(block, truth.tokens[block.base :])), now - self._sent_at)
        elif self._server_drives and self._streamed_at and news:
            stop.streamed(len(news), now - self._streamed_at)
        self._streamed_at = now if self._server_drives and not answers_draft else 0.0

    def _room(self, base: int) -> BlockBudget:
        """Draft tokens that can still commit from `base` on; the very last token of a sequence needs no draft."""
        truth, limits = self._verifier.truth, self._verifier.limits
        last = min(truth.prompt_length + self._params.max_tokens, limits.context_length)
        return BlockBudget(max(0, min(last - base - 1, limits.max_draft)), limits.max_tree, self._hint)


def _cut(drafted: Drafted, hint: int | None) -> Drafted:
    """What of a chain the server has use for by now, and that part's share of the seconds."""
    block, seconds = drafted
    if hint is None or block.parents or len(block.tokens) <= hint:
        return drafted
    return Drafted(block.first(hint), seconds * hint / len(block.tokens))


def _commit(news: tuple[int, ...], base: int, verdict: Verdict, block: DraftBlock | None) -> Commit:
    logprobs = verdict.logprobs[-len(news) :] if news else ()
    if verdict.logprobs and len(logprobs) < len(news):
        raise ProtocolError("the server left log-probabilities out; reopen the sequence")
    if block is None:
        return Commit(news, 0, 0, logprobs)
    accepted = block.base + verdict.num_accepted - base  # of the accepted tokens, those not known before
    return Commit(
        news, len(block.tokens), min(len(news), max(0, accepted)), logprobs, _is_whole(block, verdict)
    )


def _is_whole(block: DraftBlock, verdict: Verdict) -> bool:
    """Whether the accepted tokens reach an end of the block."""
    if not block.parents:
        return verdict.num_accepted == len(block.tokens)
    path = agreed(block, verdict.tokens[: verdict.num_accepted])
    return (path[-1] if path else -1) not in block.parents
