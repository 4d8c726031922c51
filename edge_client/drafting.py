"""The drafter's own thread: one hop per block, never one per token; a flag interrupts between two tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple, Protocol

from edge_client.drafters.base import Drafter
from edge_client.drafters.none import NoneDrafter
from edge_client.stop import StopRule
from opensled.messages import DraftBlock, DraftToken
from opensled.protocol import Truth
from opensled.sampling import Sampler, SparseSampler

log = logging.getLogger(__name__)


class Drafted(NamedTuple):
    """A block, and how many seconds it took to propose; 0 = not told."""

    block: DraftBlock
    seconds: float = 0.0


class Drafting(Protocol):
    """What the edge loop asks for drafts: a drafter in its thread, or drafts recorded earlier."""

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """Start a sequence; nobody waits for the prompt to be read."""

    def draft(self, truth: Truth, limit: int, hint: int | None = None) -> asyncio.Future[Drafted]:
        """Draft at most `limit` tokens to follow the truth as it is now; `hint`: the server's, None = it gave none."""

    def interrupt(self) -> None:
        """Whatever is being drafted is not needed any more."""


@dataclass
class Job:
    """One sequence in the drafter's thread. A job that is over must not disturb the next one."""

    known: int  # tokens of the truth the drafter has heard of
    over: bool = False  # interrupted, or failed
    sparse: bool = False  # each token must name the distribution it was drawn from


class DraftThread:
    """Runs one drafter for one sequence at a time.

    A drafter that fails stops proposing until the next sequence: its user then reads the server's own tokens.
    Ids outside [0, vocab_size) end a block: the target does not know them.
    """

    def __init__(self, drafter: Drafter, stop: StopRule, vocab_size: int = 1 << 31) -> None:
        self._drafter, self._stop, self._vocab_size = drafter, stop, vocab_size
        self.drafts = not isinstance(drafter, NoneDrafter)  # whether it ever proposes anything
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")
        self._job = Job(0, over=True)

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the drafter reads the prompt in its thread."""
        self._job.over = True
        self._job = Job(len(truth), sparse=isinstance(sampler, SparseSampler))
        sampler = replace(sampler, with_confidence=self._stop.needs_confidence, vocab_size=self._vocab_size)
        self._thread.submit(self._guarded, self._job, self._drafter.begin, list(truth.tokens), sampler)

    def draft(self, truth: Truth, limit: int, hint: int | None = None) -> asyncio.Future[Drafted]:
        """See `Drafting`; the seconds are the drafter's own, without the wait for its thread."""
        job, base = self._job, len(truth)
        news, job.known = tuple(truth.tokens[job.known :]), base
        work = partial(self._draft, job, news, base, limit, hint)
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def interrupt(self) -> None:
        """See `Drafting`."""
        self._job.over = True

    def close(self) -> None:
        self.interrupt()
        self._thread.submit(self._drafter.close)
        self._thread.shutdown()

    def _draft(self, job: Job, news: tuple[int, ...], base: int, limit: int, hint: int | None) -> Drafted:
        block: list[DraftToken] = []
        if news:
            self._guarded(job, self._drafter.commit, news)
        started = time.monotonic()
        self._guarded(job, self._propose, job, limit, hint, block)
        seconds = time.monotonic() - started
        known = takewhile(lambda token: self._usable(job, token), block)
        return Drafted(DraftBlock(base, tuple(known)), seconds)

    def _usable(self, job: Job, token: DraftToken) -> bool:
        """Whether the target knows the id and, where it must, the distribution it was drawn from."""
        return 0 <= token.id < self._vocab_size and (not job.sparse or token.drawn_from is not None)

    def _propose(self, job: Job, limit: int, hint: int | None, block: list[DraftToken]) -> None:
        block.extend(self._stop.take(self._drafter.propose(), limit, lambda: job.over, hint))

    def _guarded(self, job: Job, work: Callable[..., None], *arguments: object) -> None:
        if job.over:
            return
        try:
            work(*arguments)
        except Exception:
            log.exception("the drafter failed; this sequence goes on without drafts")
            job.over = True
