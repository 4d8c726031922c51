"""The opt-in mode `provisional`: the device drafts on while its server is away.

These tokens are a draft like any other. A terminal shows them as a guess, they go to the server for verification when
it is back, and they become text once the target has confirmed them. local_only.py is the mode in which the draft model
answers without the target.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from edge_client.lengths.fixed import FixedLength
from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.drafting import DraftThread
from opensled.core.messages import DraftBlock, DraftToken, Verdict
from opensled.core.protocol import EndRules, Truth, common_prefix, cut, rebase
from opensled.core.sampling import Sampler

# Drafted in one go; the drafter is busy for so many tokens at most when the server is back
SEGMENT = BlockBudget(4, policy=FixedLength(4))


@dataclass
class ProvisionalTail:
    """What a drafter wrote after the last truth it knew."""

    base: int  # tokens of that truth
    supposed: Truth  # the truth if the target agrees with the whole tail
    tokens: list[DraftToken] = field(default_factory=list)

    @classmethod
    def after(cls, truth: Truth) -> ProvisionalTail:
        prompt, generated = truth.tokens[: truth.prompt_length], truth.generated
        return cls(len(truth), Truth(prompt, generated))

    def beyond(self, truth: Truth) -> tuple[DraftToken, ...]:
        """The tokens that may still follow the present truth; () if the truth contradicts them or is longer."""
        block = rebase(DraftBlock(self.base, tuple(self.tokens)), truth.tokens)
        return block.tokens if block else ()

    def extend(self, block: DraftBlock, ends: EndRules) -> bool:
        """Append a drafted block; True if more can follow it."""
        ids, reason = cut(block.ids, len(self.supposed), ends)
        self.tokens += block.tokens[: len(ids)]
        self.supposed.extend(Verdict(len(self.supposed), ids, finish_reason=reason))
        return bool(ids) and not reason


class ProvisionalDrafting:
    """A `Drafting` that can draft on without verdicts. Its tail is the next draft as long as the truth agrees.

    The drafter takes its own tokens for the truth. When they are used up or contradicted, it begins again with the
    real truth; a draft model keeps the part of its cache that agrees.
    """

    def __init__(self, inner: DraftThread, ends: EndRules, most: int) -> None:
        self._inner, self._ends, self._most = inner, ends, most
        self._tail: ProvisionalTail | None = None
        self._wasted = 0

    @property
    def wasted(self) -> int:
        return self._wasted + self._inner.wasted

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        self._sampler, self._tail = sampler, None
        self._inner.begin(truth, sampler)

    def draft(self, truth: Truth, room: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; a tail that is ready is returned at once."""
        ready = self.ahead(truth)
        if not ready:
            self._return_to(truth)
            return self._inner.draft(truth, room)
        length = room.length if room.hint is None else min(room.length, room.hint)
        block: asyncio.Future[Drafted] = asyncio.get_running_loop().create_future()
        block.set_result(Drafted(DraftBlock(len(truth), ready[:length])))
        return block

    def look_ahead(self, block: DraftBlock, room: BlockBudget) -> None:
        """See `Drafting`; a drafter with a tail is ahead already."""
        if self._tail is None:
            self._inner.look_ahead(block, room)

    def hear(self, truth: Truth) -> None:
        if self._tail is None:
            self._inner.hear(truth)

    def interrupt(self) -> None:
        self._inner.interrupt()

    def ahead(self, truth: Truth) -> tuple[DraftToken, ...]:
        """The tokens of the tail that the target has not verified yet."""
        return self._tail.beyond(truth) if self._tail else ()

    async def go_on(self, truth: Truth) -> bool:
        """Draft a few tokens more; False at the end of the sequence, at the bound, or without proposals."""
        if self._tail is None or self._tail.supposed.tokens[: len(truth)] != truth.tokens:
            self._return_to(truth)
            self._tail = ProvisionalTail.after(truth)
        tail = self._tail
        if tail.supposed.finish_reason or len(tail.tokens) >= self._most:
            return False
        drafted = await self._inner.draft(tail.supposed, SEGMENT)
        return tail is self._tail and tail.extend(drafted.block, self._ends)

    def _return_to(self, truth: Truth) -> None:
        """Drop the tail, which is used up or wrong, and begin again after `truth`."""
        if self._tail is None:
            return
        written, base = [token.id for token in self._tail.tokens], self._tail.base
        in_vain = len(written) - common_prefix(written, truth.tokens[base:])
        self._wasted += self._inner.wasted + in_vain
        self._tail = None
        self._inner.begin(truth, self._sampler)
