"""A device that drafts what was recorded, in the time its profile says: many of them are coroutines of one process.

The proposals are the real drafter's; the job, stop rule, cache discipline and look-ahead are the product's. Only the
arithmetic of the draft model is left out, and its time is waited for instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from edge_client.draft_job import BlockBudget, Drafted, DraftJob
from edge_client.lengths.base import DraftLengthPolicy
from hw_profiles.device_profile import DraftSpeed
from opensled.messages import DraftBlock
from opensled.protocol import Truth, common_prefix
from opensled.sampling import Sampler
from opensled_testbed.emulation.draft_pace import DraftPace
from opensled_testbed.emulation.recorded_model import RecordedModel
from opensled_testbed.traces import ItemTrace


class ReplayDrafts:
    """`Drafting` by the traces of a drafter, one per device. `traces`: by prompt ids.

    `speed` of the draft model on the device, None = as fast as asked (as drafts from a lookup, or beside the server);
    `dilation`: real seconds for each of its seconds.
    """

    def __init__(
        self,
        traces: Mapping[tuple[int, ...], ItemTrace],
        speed: DraftSpeed | None,
        stop: DraftLengthPolicy,
        dilation: float = 1.0,
        looks_ahead: bool = False,
    ) -> None:
        self.stop = stop
        self._traces, self._looks_ahead = traces, looks_ahead
        self._pace = DraftPace(speed, _now, _at, dilation)
        self._model = RecordedModel(self._pace.spend)
        self._job = DraftJob(self._model, stop, 0)
        self._waiting: asyncio.Future[Drafted] | None = None

    @property
    def drafted(self) -> int:
        """Tokens so far, those that the stop rule threw away or a verdict overtook included."""
        return self._pace.passes

    @property
    def wasted(self) -> int:
        """See `Drafting`."""
        return self._job.wasted

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the prompt is read with the first block. Raises AssertionError for a prompt not recorded."""
        self.interrupt()
        prompt = tuple(truth.tokens[: truth.prompt_length])
        assert prompt in self._traces, f"nothing is recorded for this prompt of {len(prompt)} tokens"
        self._model.trace = self._traces[prompt]
        self._job = DraftJob(self._model, self.stop, truth.prompt_length)
        self._job.begin(prompt, sampler)

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; done when the device would be. Raises AssertionError for a truth that was not recorded."""
        assert self._waiting is None, "a device drafts one block at a time"
        self._check(truth)
        future = self._waiting = asyncio.get_running_loop().create_future()
        self._pace.run(self._job.draft(truth.tokens, budget), self._done)
        return future

    def look_ahead(self, block: DraftBlock, budget: BlockBudget) -> None:
        """See `Drafting`."""
        work = self._job.look_ahead(block, budget) if self._looks_ahead else None
        if work is not None:
            self._pace.run(work)

    def heard(self, truth: Truth) -> None:
        """See `Drafting`; between two tokens."""
        self._job.heard(truth.tokens)

    def interrupt(self) -> None:
        """See `Drafting`; the token under way is still drafted, and what was to follow it never counted."""
        self._job.interrupt()
        self._pace.cancel()
        self._done(Drafted(DraftBlock(0)))

    def _check(self, truth: Truth) -> None:
        """The truth has to be the recorded text."""
        trace, text = self._model.trace, truth.generated
        if text != trace.target_ids[: len(text)]:
            place = common_prefix(text, trace.target_ids)
            raise AssertionError(
                f"item {trace.item}: the target departs from the recording at token {place} of its text; record "
                "again with the same target, precision, seeds and max_tokens"
            )

    def _done(self, drafted: Drafted) -> None:
        future, self._waiting = self._waiting, None
        if future is not None and not future.done():
            future.set_result(drafted)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _at(time: float, call: Callable[[int], None], argument: int) -> object:
    return asyncio.get_running_loop().call_at(time, call, argument)
