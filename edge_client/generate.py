"""The edge loop: draft, send, obey the verdict, hand its tokens on. Start reading here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from edge_client.drafting import DraftThread
from edge_client.verifier import Verifier
from opensled.messages import Draft, DraftBlock, SamplingParams, Verdict
from opensled.sampling import Sampler


@dataclass(frozen=True)
class Commit:
    """Newly committed tokens, and what a draft had to do with them."""

    tokens: tuple[int, ...]
    drafted: int  # length of the draft this answers; 0 = decoded by the server unasked
    accepted: int  # how many of `tokens` came from that draft


async def generate(
    verifier: Verifier, drafter: DraftThread, params: SamplingParams
) -> AsyncGenerator[Commit, None]:
    """Yield what the target commits to an open sequence, until it is finished.

    The drafter only ever helps: it works while verdicts flow, and the text is the target's own without it.
    """
    truth = verifier.truth
    drafter.begin(truth, Sampler(params, verifier.noise_key))
    hearing = asyncio.ensure_future(verifier.next_verdict())
    drafting: asyncio.Future[DraftBlock] | None = drafter.draft(truth, _room(verifier, params))
    sent = Draft(0, DraftBlock(0))  # the latest draft
    answered, server_drives = True, True
    try:
        while not truth.finish_reason:
            waited_for: set[asyncio.Future[Any]] = {hearing, drafting} if drafting else {hearing}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if drafting is not None and drafting.done():
                block, drafting = drafting.result(), None
                if block.tokens or not server_drives:  # an empty block hands the drive back to the server
                    sent = Draft(sent.counter + 1, block)
                    answered = server_drives = not block.tokens
                    await verifier.submit(sent)
            if hearing.done():
                verdict = hearing.result()
                base, news = len(truth), truth.extend(verdict) or ()
                answers_draft = not answered and verdict.answers == sent.counter
                answered = answered or answers_draft
                server_drives = server_drives or verdict.hint == 0
                yield _commit(news, base, verdict, sent.block if answers_draft else None)
                if answered and drafting is None and verdict.hint != 0:
                    drafting = drafter.draft(truth, _room(verifier, params))
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


def _commit(news: tuple[int, ...], base: int, verdict: Verdict, block: DraftBlock | None) -> Commit:
    if block is None:
        return Commit(news, 0, 0)
    accepted = block.base + verdict.num_accepted - base  # of the accepted tokens, those not known before
    return Commit(news, len(block.tokens), min(len(news), max(0, accepted)))
