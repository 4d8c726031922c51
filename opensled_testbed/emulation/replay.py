"""A device that drafts what was recorded, in the time its profile says: many of them are coroutines of one process.

The proposals are the real drafter's, the stop rule and the cache discipline are the product's; only the arithmetic of
the draft model is left out, and its time is waited for instead.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_client.drafters.base import ModelDrafter
from edge_client.drafting import Drafted, Room
from edge_client.stop import BlockRule, StopRule, pulled
from hw_profiles.device import DraftSpeed
from opensled.messages import DraftBlock, DraftToken
from opensled.protocol import Truth, common_prefix
from opensled.sampling import Sampler
from opensled_testbed.emulation.device_time import forward_s
from opensled_testbed.traces import ItemTrace, Proposal

CONTEXT = 1 << 30  # positions; recorded drafts know no end of the cache
NOTHING = Proposal((), ())


class RecordedModel(ModelDrafter):
    """The draft model of a recording: it keeps its cache as the real one does, and its passes only cost seconds."""

    def __init__(self, speed: DraftSpeed | None) -> None:
        super().__init__(CONTEXT)
        self._speed = speed
        self._trace: ItemTrace | None = None
        self.passes: list[float] = []  # seconds of each pass since it was last emptied

    def start(self, trace: ItemTrace, sampler: Sampler) -> None:
        self._trace = trace
        self.begin(trace.prompt_ids, RecordedSampler(sampler.params, sampler.key))

    @property
    def proposal(self) -> Proposal:
        """What was recorded after the present truth; nothing at the end of the text."""
        assert self._trace is not None, "begin comes first"
        place = len(self.sequence) - len(self.drafted) - len(self._trace.prompt_ids)
        return self._trace.proposals[place] if place < len(self._trace.proposals) else NOTHING

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Not logits but the next recorded token and its confidence; `RecordedSampler` draws just that."""
        self.passes.append(forward_s(self._speed, len(tokens)))
        proposal, index = self.proposal, len(self.drafted)
        return np.array((proposal.ids[index], proposal.confidences[index]))

    def truncate(self, length: int) -> int:
        return length


class RecordedSampler(Sampler):
    """Draws what was drawn when it was recorded."""

    def draw(self, logits: np.ndarray, position: int) -> DraftToken:
        return DraftToken(int(logits[0]), float(logits[1]))


@dataclass
class Job:
    """One block being drafted."""

    future: asyncio.Future[Drafted]
    block: DraftBlock
    started: float
    finished: Sequence[float]  # when each token is drafted, on the event loop's clock
    timer: asyncio.TimerHandle | None = field(default=None)


class ReplayDrafts:
    """`Drafting` by the traces of a drafter, one per device. `traces`: by prompt ids.

    `speed` of the draft model on the device, None = as fast as asked (as drafts from a lookup, or beside the server);
    `dilation`: real seconds for each of its seconds. Blocks longer than what was recorded at a place end there.
    """

    def __init__(
        self,
        traces: Mapping[tuple[int, ...], ItemTrace],
        speed: DraftSpeed | None,
        stop: StopRule,
        dilation: float = 1.0,
    ) -> None:
        self.drafted = 0  # tokens so far, those that the stop rule threw away or a verdict overtook included
        self.wasted = 0
        self.stop: BlockRule = stop
        self._traces, self._dilation = traces, dilation
        self._model = RecordedModel(speed)
        self._trace: ItemTrace | None = None
        self._known = 0  # tokens of the truth that the model has heard of
        self._free_at = 0.0  # when the device has done all it was asked
        self._job: Job | None = None

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the prompt is read with the first block. Raises AssertionError for a prompt not recorded."""
        self.interrupt()
        prompt = tuple(truth.tokens[: truth.prompt_length])
        assert prompt in self._traces, f"nothing is recorded for this prompt of {len(prompt)} tokens"
        self._trace = self._traces[prompt]
        self._known = truth.prompt_length
        self._model.start(self._trace, sampler)

    def draft(self, truth: Truth, room: Room) -> asyncio.Future[Drafted]:
        """See `Drafting`; done when the device would be. Raises AssertionError for a truth that was not recorded."""
        assert self._job is None, "a device drafts one block at a time"
        self._hear(truth)
        loop = asyncio.get_running_loop()
        tokens = self._take(min(room.length, len(self._model.proposal.ids)), room.hint)
        started = max(loop.time(), self._free_at)
        finished = self._schedule(started)
        job = Job(loop.create_future(), DraftBlock(len(truth), tokens), started, finished)
        if not finished or finished[-1] <= loop.time():
            self._finish(job)
        else:
            self._job, self._free_at = job, finished[-1]
            job.timer = loop.call_at(finished[-1], self._finish, job)
        return job.future

    def look_ahead(self, block: DraftBlock, room: Room) -> None:
        """See `Drafting`; these devices wait for the verdict."""

    def heard(self, truth: Truth) -> None:
        """See `Drafting`; a block under way is drafted to its end."""

    def interrupt(self) -> None:
        """See `Drafting`; the token under way is still drafted, and what was to follow it never counted."""
        job, self._job = self._job, None
        if job is None:
            return
        assert job.timer is not None
        job.timer.cancel()
        done = min(bisect_left(job.finished, asyncio.get_running_loop().time()) + 1, len(job.finished))
        self._free_at = job.finished[done - 1]
        self.drafted += done
        if not job.future.done():
            job.future.set_result(Drafted(DraftBlock(job.block.base)))

    def _hear(self, truth: Truth) -> None:
        """Tell the model what is new in the truth, which is the recorded text."""
        trace = self._trace
        assert trace is not None, "begin comes first"
        start, news = self._known - truth.prompt_length, tuple(truth.tokens[self._known :])
        recorded = trace.target_ids[start : start + len(news)]
        if news != recorded:
            place = start + common_prefix(news, recorded)
            raise AssertionError(
                f"item {trace.item}: the target departs from the recording at token {place} of its text; record "
                "again with the same target, precision, seeds and max_tokens"
            )
        if news:
            self._model.commit(news)
        self._known = len(truth)

    def _take(self, limit: int, hint: int | None) -> tuple[DraftToken, ...]:
        """A block by the stop rule; `passes` then holds what it took."""
        self._model.passes.clear()
        return tuple(
            pulled(self.stop, self._model.propose(), self.stop.most(limit, hint), lambda: False)
        )

    def _schedule(self, start: float) -> list[float]:
        """When each token that the model now drafts is done, from `start` on."""
        times = []
        for seconds in self._model.passes:
            start += self._dilation * seconds
            times.append(start)
        return times

    def _finish(self, job: Job) -> None:
        self._job = None
        self.drafted += len(job.finished)
        if not job.future.done():
            seconds = job.finished[-1] - job.started if job.finished else 0.0
            job.future.set_result(Drafted(job.block, seconds))
