"""The drafter's own thread: one hop per block, never one per token; a flag interrupts between two tokens."""

import asyncio
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from edge_client.drafters.base import Drafter
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.base import DraftLengthPolicy
from edge_client.round.draft_job import BlockBudget, Drafted, DraftJob, Result, Work
from opensled.core.messages import DraftBlock
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler, SparseSampler


class Drafting(Protocol):
    """The source of drafts for the edge loop: a drafter in its thread, or recorded drafts."""

    @property
    def wasted(self) -> int:
        """The number of tokens so far that were drafted ahead but not used."""

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """Start a sequence. Returns before the prompt is read."""

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """Draft a continuation of the present truth; any other work of the drafter ends."""

    def look_ahead(self, block: DraftBlock, budget: BlockBudget) -> None:
        """Draft ahead of `block`, which has just been sent, until the next call of another method than `hear`."""

    def hear(self, truth: Truth) -> None:
        """The truth has grown: if it contradicts the block that is being drafted, that block ends."""

    def interrupt(self) -> None:
        """Stop drafting: the present block is not needed any more."""


class JobDrafting(ABC):
    """`Drafting` by the job of one drafter, one sequence at a time; a subclass chooses where its work runs.

    Ids outside [0, vocab_size) end a block: the target does not know them. `placeholder`: the id that stands for
    pictures in a prompt. A drafter reads text only, so placeholders are left out for it.
    """

    def __init__(
        self,
        drafter: Drafter,
        stop: DraftLengthPolicy,
        vocab_size: int = 1 << 31,
        looks_ahead: bool = True,
        placeholder: int | None = None,
    ) -> None:
        self._drafter, self._stop, self._vocab_size = drafter, stop, vocab_size
        self._placeholder = placeholder
        self._looks_ahead = looks_ahead
        self._job = DraftJob(drafter, stop, 0)
        self._job.interrupt()
        self._wasted = self._rewinds = 0  # of earlier jobs of the sequence; of the truth that the job knows

    @abstractmethod
    def _begin(self, prompt: list[int], sampler: Sampler) -> None:
        """Call `begin` of the job in the place where its work runs."""

    @abstractmethod
    def _run(self, work: Work[Result]) -> asyncio.Future[Result]:
        """Do the work after all earlier work."""

    @property
    def wasted(self) -> int:
        """See `Drafting`; of the present sequence."""
        return self._wasted + self._job.wasted

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`."""
        self._wasted = 0
        self._start(truth, sampler)

    def _start(self, truth: Truth, sampler: Sampler) -> None:
        """Start a new job after all known tokens."""
        self.interrupt()
        self._sampler, self._rewinds = sampler, truth.rewinds
        stop, sparse = self._stop, isinstance(sampler, SparseSampler)
        self._job = DraftJob(self._drafter, stop, len(truth), self._vocab_size, sparse)
        text = self._without_pictures(truth)
        skipped = len(truth) - len(text)
        sampler = replace(
            sampler,
            prompt_length=sampler.prompt_length - skipped,
            skipped=skipped,
            with_confidence=stop.needs_confidence,
            vocab_size=self._vocab_size,
        )
        self._begin(text, sampler)

    def _without_pictures(self, truth: Truth) -> list[int]:
        """The text for the drafter: the prompt without placeholders, and the committed tokens."""
        prompt, answer = truth.tokens[: truth.prompt_length], truth.tokens[truth.prompt_length :]
        return [*[token for token in prompt if token != self._placeholder], *answer]

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; the seconds are the drafter's own, without the wait for earlier work.

        If a relay took tokens back, the drafter begins again; a draft model keeps the part of its cache that agrees.
        """
        if truth.rewinds != self._rewinds:
            self._wasted += self._job.wasted
            self._start(truth, self._sampler)
        return self._run(self._job.draft(truth.tokens, budget))

    def look_ahead(self, block: DraftBlock, budget: BlockBudget) -> None:
        """See `Drafting`."""
        work = self._job.look_ahead(block, budget) if self._looks_ahead else None
        if work is not None:
            self._run(work)

    def hear(self, truth: Truth) -> None:
        """See `Drafting`; the work ahead of a block that the truth contradicts ends as well."""
        if truth.rewinds != self._rewinds:
            self._job.interrupt()
        else:
            self._job.hear(truth.tokens)

    def interrupt(self) -> None:
        """See `Drafting`."""
        self._job.interrupt()


class DraftThread(JobDrafting):
    """Runs one drafter in a thread of its own."""

    def __init__(
        self,
        drafter: Drafter,
        stop: DraftLengthPolicy,
        vocab_size: int = 1 << 31,
        looks_ahead: bool = True,
        placeholder: int | None = None,
    ) -> None:
        super().__init__(drafter, stop, vocab_size, looks_ahead, placeholder)
        self.drafts = not isinstance(drafter, NoneDrafter)  # whether it ever proposes anything
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")

    def _begin(self, prompt: list[int], sampler: Sampler) -> None:
        self._thread.submit(self._job.begin, prompt, sampler)

    def _run(self, work: Work[Result]) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._thread, run_to_end, work)

    def close(self) -> None:
        self.interrupt()
        self._thread.submit(self._drafter.close)
        self._thread.shutdown()


def run_to_end(work: Work[Result]) -> Result:
    """Do the work at once, at the pace of this machine."""
    try:
        next(work)
        while True:
            work.send(time.monotonic())
    except StopIteration as end:
        result: Result = end.value
        return result
