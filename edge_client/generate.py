"""The edge loop: draft, send, obey the verdict, hand its tokens on. Start reading here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

from edge_client.answer import Origin
from edge_client.drafting import Drafted, Drafting
from edge_client.verifier import Verifier
from opensled.errors import ProtocolError
from opensled.messages import Draft, DraftBlock, SamplingParams, TokenLogprobs, Verdict
from opensled.sampling import sampler


@dataclass(frozen=True)
class Commit:
    """Newly committed tokens, and what a draft had to do with them."""

    tokens: tuple[int, ...]
    drafted: int  # length of the draft this answers; 0 = decoded by the server unasked
    accepted: int  # how many of `tokens` came from that draft
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each of `tokens`, when asked for
    whole: bool = False  # whether all of that draft stands, so that a token after it is the bonus token

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
    truth = verifier.truth
    drafter.begin(truth, sampler(params, verifier.noise_key, verifier.rule))
    hint = verifier.hint  # 0 = the server decodes by itself, and nothing is drafted until it says otherwise
    drafting: asyncio.Future[Drafted] | None = None
    if hint != 0:
        drafting = drafter.draft(truth, _room(verifier, params), hint)
    hearing = asyncio.ensure_future(verifier.next_verdict())
    sent = Draft(0, DraftBlock(0))  # the latest draft
    answered, server_drives = True, True
    try:
        while not truth.finish_reason:
            waited_for: set[asyncio.Future[Any]] = {hearing, drafting} if drafting else {hearing}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if drafting is not None and drafting.done():
                (block, seconds), drafting = _cut(drafting.result(), verifier.hint), None
                if block.tokens or not server_drives:  # an empty block hands the drive back to the server
                    sent = Draft(sent.counter + 1, block, seconds)
                    answered = server_drives = not block.tokens
                    await verifier.submit(sent)
            if hearing.done():
                verdict = hearing.result()
                base, news = len(truth), truth.extend(verdict) or ()
                answers_draft = not answered and verdict.answers == sent.counter
                answered = answered or answers_draft
                rested, hint = hint == 0, verifier.hint
                # A server that let the device rest and hints at a draft again waits for it, be it empty.
                server_drives = hint == 0 or (server_drives and not rested)
                yield _commit(news, base, verdict, sent.block if answers_draft else None)
                if answered and drafting is None and hint != 0:
                    drafting = drafter.draft(truth, _room(verifier, params), hint)
                hearing = asyncio.ensure_future(verifier.next_verdict())
    finally:
        drafter.interrupt()
        # First the farewell, then the cancel: a cancelled read would take the whole stream with it.
        await verifier.close()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


def _room(verifier: Verifier, params: SamplingParams) -> int:
    """Draft tokens that can still commit; the very last token of a sequence needs no draft."""
    truth, limits = verifier.truth, verifier.limits
    last = min(truth.prompt_length + params.max_tokens, limits.context_length)
    return max(0, min(last - len(truth) - 1, limits.max_draft))


def _cut(drafted: Drafted, hint: int | None) -> Drafted:
    """What of a block the server has use for by now, and that part's share of the seconds."""
    block, seconds = drafted
    if hint is None or len(block.tokens) <= hint:
        return drafted
    return Drafted(replace(block, tokens=block.tokens[:hint]), seconds * hint / len(block.tokens))


def _commit(news: tuple[int, ...], base: int, verdict: Verdict, block: DraftBlock | None) -> Commit:
    logprobs = verdict.logprobs[-len(news) :] if news else ()
    if verdict.logprobs and len(logprobs) < len(news):
        raise ProtocolError("the server left log-probabilities out; reopen the sequence")
    if block is None:
        return Commit(news, 0, 0, logprobs)
    accepted = block.base + verdict.num_accepted - base  # of the accepted tokens, those not known before
    whole = verdict.num_accepted == len(block.tokens)
    return Commit(news, len(block.tokens), min(len(news), max(0, accepted)), logprobs, whole)
