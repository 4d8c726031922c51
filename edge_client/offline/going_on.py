"""What a device does while its server is away: it waits, and says so; `provisional` drafts on meanwhile.

Whatever the draft model writes then is a draft like any other: shown as a guess where somebody watches, sent for
verification when a server is back, and text only once the target has confirmed it. The mode in which a device answers
without the target is another file: local_only.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from edge_client.draft_job import BlockBudget, Drafted
from edge_client.drafting import DraftThread
from edge_client.generate import Commit
from edge_client.lengths.fixed import FixedLength
from edge_client.offline.absence import Offline
from edge_client.remote import RemoteSession
from opensled.messages import DraftBlock, DraftToken, Verdict
from opensled.protocol import EndRules, Truth, common_prefix, cut, rebase
from opensled.sampling import Sampler

# Drafted at once: so soon is a drafter free when the server is back
SEGMENT = BlockBudget(4, policy=FixedLength(4))


@dataclass
class ProvisionalTail:
    """What a drafter wrote by itself after the truth that it knew."""

    base: int
    supposed: Truth  # the truth, if the target agrees with all of it
    tokens: list[DraftToken] = field(default_factory=list)

    @classmethod
    def after(cls, truth: Truth) -> ProvisionalTail:
        prompt, generated = truth.tokens[: truth.prompt_length], truth.generated
        return cls(len(truth), Truth(prompt, generated))

    def beyond(self, truth: Truth) -> tuple[DraftToken, ...]:
        """What may still follow the truth as it is by now; () where that contradicts it, or has got further."""
        block = rebase(DraftBlock(self.base, tuple(self.tokens)), truth.tokens)
        return block.tokens if block else ()

    def agrees_with(self, truth: Truth) -> bool:
        return self.supposed.tokens[: len(truth)] == truth.tokens

    def extend(self, block: DraftBlock, ends: EndRules) -> bool:
        """Take a block that was drafted to follow; whether something can follow it."""
        ids, reason = cut(block.ids, len(self.supposed), ends)
        self.tokens += block.tokens[: len(ids)]
        self.supposed.extend(Verdict(len(self.supposed), ids, finish_reason=reason))
        return bool(ids) and not reason


class GoingOn:
    """A `Drafting` that can go on alone. What it wrote then are the next drafts, as long as the truth agrees.

    The drafter is told to take its own words for the truth. Once they are used up, or contradicted, it begins anew
    with the real one; a draft model keeps what it has computed of it.
    """

    def __init__(self, inner: DraftThread, ends: EndRules, most: int) -> None:
        self._inner, self._ends, self._most = inner, ends, most
        self.stop = inner.stop
        self._tail: ProvisionalTail | None = None
        self._wasted = 0

    @property
    def wasted(self) -> int:
        """See `Drafting`."""
        return self._wasted + self._inner.wasted

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`."""
        self._sampler, self._tail = sampler, None
        self._inner.begin(truth, sampler)

    def draft(self, truth: Truth, room: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; a block that is written already is there at once."""
        ready = self.ahead(truth)
        if not ready:
            self._return_to(truth)
            return self._inner.draft(truth, room)
        length = room.length if room.hint is None else min(room.length, room.hint)
        block: asyncio.Future[Drafted] = asyncio.get_running_loop().create_future()
        block.set_result(Drafted(DraftBlock(len(truth), ready[:length])))
        return block

    def look_ahead(self, block: DraftBlock, room: BlockBudget) -> None:
        """See `Drafting`; a drafter that has gone on is ahead already."""
        if self._tail is None:
            self._inner.look_ahead(block, room)

    def heard(self, truth: Truth) -> None:
        """See `Drafting`."""
        if self._tail is None:
            self._inner.heard(truth)

    def interrupt(self) -> None:
        """See `Drafting`."""
        self._inner.interrupt()

    def ahead(self, truth: Truth) -> tuple[DraftToken, ...]:
        """What the drafter wrote by itself and the target has not judged yet."""
        return self._tail.beyond(truth) if self._tail else ()

    async def go_on(self, truth: Truth) -> bool:
        """Write a few tokens more; False when there are no more for now: at an end, at a bound, or nothing to say."""
        if self._tail is None or not self._tail.agrees_with(truth):
            self._return_to(truth)
            self._tail = ProvisionalTail.after(truth)
        tail = self._tail
        if tail.supposed.finish_reason or len(tail.tokens) >= self._most:
            return False
        drafted = await self._inner.draft(tail.supposed, SEGMENT)
        return tail is self._tail and tail.extend(drafted.block, self._ends)

    def _return_to(self, truth: Truth) -> None:
        """What was written is used up, or wrong."""
        if self._tail is None:
            return
        written, base = [token.id for token in self._tail.tokens], self._tail.base
        in_vain = len(written) - common_prefix(written, truth.tokens[base:])
        self._wasted += self._inner.wasted + in_vain
        self._tail = None
        self._inner.begin(truth, self._sampler)


class OutageWatch:
    """Listens to one answer, and meanwhile looks whether its server is away."""

    def __init__(
        self,
        commits: AsyncGenerator[Commit, None],
        session: RemoteSession,
        offline: Offline,
        going_on: GoingOn | None = None,
    ) -> None:
        self._commits, self._session, self._offline, self._going_on = commits, session, offline, going_on
        self._writing: asyncio.Future[bool] | None = None

    async def events(self) -> AsyncGenerator[Commit | float, None]:
        """Commits as they come; in between, while the server is away, the seconds since it was heard."""
        hearing: asyncio.Future[Commit | None] | None = None
        try:
            while True:
                hearing, since = asyncio.ensure_future(_next(self._commits)), time.monotonic()
                while not await self._heard(hearing):
                    seconds = time.monotonic() - since
                    if self._session.away or seconds >= self._offline.quiet:
                        self._go_on()
                        yield seconds
                commit = hearing.result()
                if commit is None:
                    return
                yield commit
        finally:
            await _ended(hearing, self._writing)

    async def _heard(self, hearing: asyncio.Future[Commit | None]) -> bool:
        """Wait for it, but no longer than until the next look, or until there is more of a tail to show."""
        waited_for: set[asyncio.Future[Any]] = {hearing}
        if self._writing and not self._writing.done():
            waited_for.add(self._writing)
        await asyncio.wait(waited_for, timeout=self._offline.look, return_when=asyncio.FIRST_COMPLETED)
        return hearing.done()

    def _go_on(self) -> None:
        if self._going_on is None or (self._writing and not self._writing.done()):
            return
        # After a segment that was the last one for now, the next try has to wait for the next look.
        more = self._writing is None or self._writing.result()
        self._writing = asyncio.ensure_future(self._going_on.go_on(self._session.truth)) if more else None


async def _next(commits: AsyncGenerator[Commit, None]) -> Commit | None:
    async for commit in commits:
        return commit
    return None


async def _ended(*tasks: asyncio.Future[Any] | None) -> None:
    under_way = [task for task in tasks if task is not None]
    for task in under_way:
        task.cancel()
    await asyncio.gather(*under_way, return_exceptions=True)
