"""A device that drafts what was recorded, in the time its profile says: many of them are coroutines of one process.

The proposals are the real drafter's. The job, the draft-length policy and the cache discipline are the product's. Only
the arithmetic of the draft model is left out; the device waits for its time instead.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.fixed import FixedLength
from edge_client.round.draft_job import BlockBudget, Drafted, Result, Work
from edge_client.round.drafting import JobDrafting, run_to_end
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.draft_pace import At, DraftPace
from lab.testbed.emulation.recorded_model import RecordedModel
from lab.testbed.traces import ItemTrace
from opensled.core.protocol import Truth, common_prefix
from opensled.core.sampling import Sampler


def _now() -> float:
    return asyncio.get_running_loop().time()


def _at(time: float, call: Callable[[int], None], argument: int) -> object:
    return asyncio.get_running_loop().call_at(time, call, argument)


class ReplayDrafts(JobDrafting):
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
        now: Callable[[], float] = _now,
        at: At = _at,
    ) -> None:
        """`now`, `at`: the clock, by default that of the running event loop."""
        self._traces = traces
        self._pace = DraftPace(speed, now, at, dilation)
        self._model = RecordedModel(self._pace.spend)
        super().__init__(self._model, stop, looks_ahead=looks_ahead)

    @property
    def drafted(self) -> int:
        """Tokens so far, with those that the policy threw away or a verdict overtook."""
        return self._pace.passes

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the prompt is read with the first block. Raises AssertionError for a prompt not recorded."""
        self._model.trace = self._recorded(truth)
        super().begin(truth, sampler)

    def _recorded(self, truth: Truth) -> ItemTrace:
        prompt = tuple(truth.tokens[: truth.prompt_length])
        assert prompt in self._traces, f"nothing is recorded for this prompt of {len(prompt)} tokens"
        return self._traces[prompt]

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; done when the device would be. Raises AssertionError for a truth that was not recorded."""
        trace, text = self._model.trace, truth.generated
        if text != trace.target_ids[: len(text)]:
            place = common_prefix(text, trace.target_ids)
            raise AssertionError(
                f"item {trace.item}: the target departs from the recording at token {place} of its text; record "
                "again with the same target, precision, seeds and max_tokens"
            )
        return super().draft(truth, budget)

    def _begin(self, prompt: list[int], sampler: Sampler) -> None:
        self._job.begin(prompt, sampler)

    def _run(self, work: Work[Result]) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pace.run(work, future.set_result)
        return future


class NoDrafts(JobDrafting):
    """Empty blocks, at once: the server decodes alone and streams. Without a thread, for it has nothing to do."""

    drafted = 0

    def __init__(self, future: Callable[[], Any] = asyncio.Future) -> None:
        """`future`: makes what holds the result of work."""
        super().__init__(NoneDrafter(), FixedLength(0))
        self._future = future

    def _begin(self, prompt: list[int], sampler: Sampler) -> None:
        self._job.begin(prompt, sampler)

    def _run(self, work: Work[Result]) -> Any:
        future = self._future()
        future.set_result(run_to_end(work))
        return future
