"""A device that drafts what was recorded, in the time its profile says: many of them are coroutines of one process.

The proposals are the real drafter's; stop rule, cache discipline and look-ahead are the product's. Only the arithmetic
of the draft model is left out, and its time is waited for instead: work is a generator that yields the seconds of each
pass, and goes on once they are over, as the drafter's thread (edge_client/drafting.py) goes on after a real one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.drafters.base import ModelDrafter
from edge_client.drafting import BlockBudget, Drafted
from edge_client.lengths.base import DraftLengthPolicy, pulled
from hw_profiles.device_profile import DraftSpeed
from opensled.messages import DraftBlock, DraftToken
from opensled.protocol import Truth, common_prefix, rebase
from opensled.sampling import Sampler
from opensled_testbed.emulation.device_time import forward_s
from opensled_testbed.traces import ItemTrace

CONTEXT = 1 << 30  # positions; recorded drafts know no end of the cache
Work = Iterator[float]  # real seconds of each pass, before it ends


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

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Not logits but the next recorded token and its confidence; `RecordedSampler` draws just that."""
        self.passes.append(forward_s(self._speed, len(tokens)))
        found = self._next()
        assert found is not None, "nothing is drafted where nothing was recorded"
        return np.array(found)

    def _draft_one(self) -> bool:
        """See `ModelDrafter`; False also where the recorded drafter had no more to say."""
        return self._next() is not None and super()._draft_one()

    def _next(self) -> tuple[int, float] | None:
        assert self._trace is not None, "begin comes first"
        place = len(self.sequence) - len(self.drafted) - len(self._trace.prompt_ids)
        return self._trace.proposed(place, len(self.drafted))

    def truncate(self, length: int) -> int:
        return length


class RecordedSampler(Sampler):
    """Draws what was drawn when it was recorded."""

    def draw(self, logits: np.ndarray, position: int) -> DraftToken:
        return DraftToken(int(logits[0]), float(logits[1]))


@dataclass
class Job:
    """One sequence on the device, as `edge_client.drafting.Job`."""

    known: int  # tokens of the truth that the model has heard of
    turn: int = 0  # counts what was asked: drafting ahead ends with the next turn
    base: int = 0  # of the block being drafted, and
    since: tuple[int, ...] = ()  # what is known of the truth after that
    sent: DraftBlock | None = None  # the block that is worked ahead of
    ahead: int = 0  # tokens drafted ahead of it, and
    ahead_s: float = 0.0  # the seconds they took


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
        self.drafted = 0  # tokens so far, those that the stop rule threw away or a verdict overtook included
        self.wasted = 0
        self.stop = stop
        self._traces, self._dilation, self._looks_ahead = traces, dilation, looks_ahead
        self._model = RecordedModel(speed)
        self._trace: ItemTrace | None = None
        self._job = Job(0)
        self._work: deque[Work] = deque()  # the first one is under way
        self._waiting: asyncio.Future[Drafted] | None = None
        self._free_at = 0.0  # when the device has made all passes begun so far
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the prompt is read with the first block. Raises AssertionError for a prompt not recorded."""
        self.interrupt()
        prompt = tuple(truth.tokens[: truth.prompt_length])
        assert prompt in self._traces, f"nothing is recorded for this prompt of {len(prompt)} tokens"
        self._trace = self._traces[prompt]
        self._job, self.wasted = Job(truth.prompt_length), 0
        self._model.start(self._trace, sampler)

    def draft(self, truth: Truth, room: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; done when the device would be. Raises AssertionError for a truth that was not recorded."""
        assert self._waiting is None, "a device drafts one block at a time"
        job, news = self._job, self._news(truth)
        job.turn += 1
        job.base, job.since, job.sent = len(truth), (), None
        future = self._waiting = asyncio.get_running_loop().create_future()
        self._begin(self._draft(job, news, room))
        return future

    def look_ahead(self, block: DraftBlock, room: BlockBudget) -> None:
        """See `Drafting`."""
        if self._looks_ahead:
            self._job.sent = block
            self._begin(self._ahead(self._job, self._job.turn, block, room))

    def heard(self, truth: Truth) -> None:
        """See `Drafting`; between two tokens."""
        job = self._job
        job.since = tuple(truth.tokens[job.base :])
        if job.sent is not None and rebase(job.sent, truth.tokens) is None:
            job.turn += 1

    def interrupt(self) -> None:
        """See `Drafting`; the token under way is still drafted, and what was to follow it never counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._work.clear()
        self._done(Drafted(DraftBlock(self._job.base)))

    def _news(self, truth: Truth) -> tuple[int, ...]:
        """What the model has not heard of the truth, which is the recorded text."""
        trace, job = self._trace, self._job
        assert trace is not None, "begin comes first"
        start, news = job.known - truth.prompt_length, tuple(truth.tokens[job.known :])
        recorded = trace.target_ids[start : start + len(news)]
        if news != recorded:
            place = start + common_prefix(news, recorded)
            raise AssertionError(
                f"item {trace.item}: the target departs from the recording at token {place} of its text; record "
                "again with the same target, precision, seeds and max_tokens"
            )
        job.known = len(truth)
        return news

    # -- the drafter's thread: one piece of work after another, each in its passes ------------------------------

    def _begin(self, work: Work) -> None:
        self._work.append(work)
        if self._timer is None:
            self._free_at = max(self._free_at, asyncio.get_running_loop().time())
            self._run()

    def _run(self) -> None:
        """Go on until a pass takes time."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._work:
            seconds = next(self._work[0], None)
            if seconds is None:
                self._work.popleft()
            else:
                self._free_at += seconds
            if self._free_at > loop.time():
                self._timer = loop.call_at(self._free_at, self._run)
                return

    def _draft(self, job: Job, news: tuple[int, ...], room: BlockBudget) -> Work:
        """`DraftThread._draft` and `_propose`, chains only."""
        if news:
            self._model.commit(news)
        ready, each_s = self._settle(job)
        block: list[DraftToken] = []
        started = token_at = self._free_at
        length = self.stop.most(room.length, room.hint, ready)
        untimed = max(ready, job.turn == 1)  # the first one of all reads the prompt as well
        for token in pulled(self.stop, self._model.propose(), length, lambda: _overtaken(job, block)):
            yield from self._passes()
            block.append(token)
            if len(block) > untimed:
                self.stop.drafted(1, self._free_at - token_at)
            token_at = self._free_at
        yield from self._passes()
        seconds = self._free_at - started + min(ready, len(block)) * each_s
        self._done(Drafted(DraftBlock(job.base, tuple(block)), seconds))

    def _ahead(self, job: Job, turn: int, block: DraftBlock, room: BlockBudget) -> Work:
        """`DraftThread._ahead`."""
        length = self.stop.ahead(room.length, room.hint)
        steps = self._model.look_ahead(block.tokens, length) if length else iter(())
        while job.turn == turn:
            started = self._free_at
            if next(steps, job) is job:
                return
            yield from self._passes()
            seconds = self._free_at - started
            job.ahead, job.ahead_s = job.ahead + 1, job.ahead_s + seconds
            self.stop.drafted(1, seconds)

    def _settle(self, job: Job) -> tuple[int, float]:
        """`DraftThread._settle`."""
        ready = self._model.ready
        each_s = job.ahead_s / job.ahead if job.ahead else 0.0
        self.wasted += max(0, job.ahead - (ready + 1 if ready else 0))
        job.ahead, job.ahead_s = 0, 0.0
        return ready, each_s

    def _passes(self) -> Work:
        """The passes that the model has made since, one by one."""
        passes = self._model.passes
        while passes:
            self.drafted += 1
            yield self._dilation * passes.pop(0)

    def _done(self, drafted: Drafted) -> None:
        future, self._waiting = self._waiting, None
        if future is not None and not future.done():
            future.set_result(drafted)


def _overtaken(job: Job, block: list[DraftToken]) -> bool:
    """`DraftThread._overtaken`."""
    since = job.since
    return bool(since) and tuple([token.id for token in block[: len(since)]]) != since
