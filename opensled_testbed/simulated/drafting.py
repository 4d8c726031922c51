"""The simulated drafter's thread: edge_client/drafting.py in lengths and seconds, for recorded drafts.

A block is one event at its end, whatever it takes; what is drafted ahead is reckoned when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.fixed import FixedLength
from hw_profiles.device_profile import DraftSpeed
from opensled_testbed.emulation.device_time import forward_s
from opensled_testbed.load.records import RequestRecord
from opensled_testbed.simulated.draft_model import DraftModel
from opensled_testbed.simulated.drafts import Block, Script
from opensled_testbed.simulated.events import Events


class Drafted(NamedTuple):
    """A block, and how many seconds it took to propose."""

    block: Block
    seconds: float


class Thread:
    """What the answers of one device share: its draft model's time, and the rule of its blocks."""

    __slots__ = ("events", "free_at", "learns", "looks_ahead", "pass_s", "rule", "speed")

    def __init__(
        self, events: Events, speed: DraftSpeed | None, rule: DraftLengthPolicy, looks_ahead: bool
    ) -> None:
        self.events, self.speed, self.rule, self.looks_ahead = events, speed, rule, looks_ahead
        self.learns = not isinstance(rule, FixedLength)  # that one need not be told anything
        self.pass_s = forward_s(speed, 1)
        self.free_at = 0.0  # when the draft model has done all it was asked

    def begin(self, script: Script, record: RequestRecord, done: Callable[[Drafted], None]) -> Drafting:
        """Draft for one answer; `done` hears of each block, and `record` counts what is drafted."""
        return Drafting(self, script, record, done)


class Job(NamedTuple):
    """A block under way."""

    block: Block  # as it becomes if nothing interrupts it
    start: float
    ready: int  # tokens that were there before
    first_at: float  # when the first one of the others is drafted
    passes: int  # that are made for it

    def passes_at(self, now: float, pass_s: float) -> int:
        """GatewayCredentials that have ended or are under way."""
        if now <= self.start or not self.passes:
            return 0
        if now <= self.first_at:
            return 1
        later = ceil((now - self.first_at) / pass_s) if pass_s else self.passes
        return min(self.passes, 1 + later)

    def ends_at(self, passes: int, pass_s: float) -> float:
        """When so many passes are made."""
        return self.first_at + (passes - 1) * pass_s if passes else self.start


class Ahead(NamedTuple):
    """Drafting on beyond a block that was sent."""

    block: Block
    start: float
    most: int  # tokens after the truth on which that block was drafted


class Drafting:
    """`Drafting` for one answer, with the methods of that protocol."""

    __slots__ = ("_ahead", "_ahead_s", "_begun", "_done", "_job", "_model", "_record", "_script", "_thread")

    def __init__(
        self, thread: Thread, script: Script, record: RequestRecord, done: Callable[[Drafted], None]
    ) -> None:
        self._thread, self._script, self._record, self._done = thread, script, record, done
        self._model = DraftModel(script, thread.speed)
        self._begun = False  # whether the prompt was read
        self._job: Job | None = None
        self._ahead: Ahead | None = None
        self._ahead_s = 0.0  # that each token took which was drafted ahead since the latest block

    @property
    def rule(self) -> DraftLengthPolicy:
        return self._thread.rule

    @property
    def idle(self) -> bool:
        """Whether no block is under way."""
        return self._job is None

    def draft(self, truth: int, hint: int | None) -> None:
        """A block that follows `truth` tokens of the text; the first pass reads what the model has not seen."""
        thread, model = self._thread, self._model
        self._stop_ahead()
        model.commit(truth)
        ready = model.drafted
        length = thread.rule.most(self._script.room(truth), hint, ready)
        block = self._script.block(truth, length)
        passes, start = max(0, block.passes - ready), max(thread.events.now, thread.free_at)
        first_at = start + model.first_s() if passes else start
        job = self._job = Job(block, start, ready, first_at, passes)
        self._until(job, passes)

    def look_ahead(self, block: Block, hint: int | None) -> None:
        """Draft on: the bonus token that is guessed, and after it the next block."""
        thread = self._thread
        if thread.looks_ahead:
            length = thread.rule.ahead(self._script.room(block.base + block.tokens + 1), hint)
            most = block.tokens + 1 + length if length else 0
            self._ahead = Ahead(block, max(thread.events.now, thread.free_at), most)

    def heard(self, truth: int) -> None:
        """A block under way ends between two tokens once the truth contradicts it, or has got further than it; what
        is drafted ahead of one that the truth contradicts ends as well."""
        if self._ahead is not None and self._ahead.block.rest_at(truth) is None:
            self._stop_ahead()
        job = self._job
        if job is None:
            return
        pass_s, since = self._thread.pass_s, truth - job.block.base
        passes = job.passes_at(self._thread.events.now, pass_s)
        there = job.ready + passes if self._thread.events.now > job.start else 0
        if since > min(there, job.block.reach):
            job = self._job = job._replace(block=job.block.cut(there), passes=passes)
            self._until(job, passes)

    def answered(self, block: Block, truth: int, seconds: float) -> None:
        """Tell the rule what came of a block."""
        if self._thread.learns:
            accepted = min(block.reach, truth - block.base)
            self.rule.answered(self._script.draft(block), accepted, seconds)

    def end(self) -> None:
        """The answer is whole: the token under way is still drafted, and what was to follow it is not."""
        self._stop_ahead()
        job, self._job = self._job, None
        if job is not None:
            passes = job.passes_at(self._thread.events.now, self._thread.pass_s)
            self._thread.free_at = job.ends_at(passes, self._thread.pass_s)
            self._record.wasted += passes

    def _until(self, job: Job, passes: int) -> None:
        """It is done once so many passes are."""
        thread = self._thread
        thread.free_at = job.ends_at(passes, thread.pass_s)
        if thread.free_at > thread.events.now:
            thread.events.at(thread.free_at, self._finish, job)
        else:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        if self._job is not job:
            return
        self._job = None
        self._model.advance(job.passes)
        self._record.wasted += job.passes
        seconds = job.ends_at(job.passes, self._thread.pass_s) - job.start
        if self._thread.learns:
            self._time(job, seconds)
        seconds += min(job.ready, job.block.tokens) * self._ahead_s
        self._begun, self._ahead_s = True, 0.0
        self._done(Drafted(job.block, seconds))

    def _time(self, job: Job, seconds: float) -> None:
        """Tell the rule how long tokens take; the first one of all reads the prompt as well."""
        tokens = min(job.passes, job.block.tokens - job.ready)
        if not self._begun:
            tokens, seconds = tokens - 1, seconds - (job.first_at - job.start)
        if tokens > 0:
            thrown_away = job.passes - tokens - (not self._begun)
            self.rule.drafted(tokens, seconds - thrown_away * self._thread.pass_s)

    def _stop_ahead(self) -> None:
        """What was drafted ahead by now; the pass under way still ends."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        thread, left = self._thread, max(0, ahead.most - self._model.drafted)
        elapsed = max(0.0, thread.events.now - ahead.start)
        passes = min(left, ceil(elapsed / thread.pass_s)) if thread.pass_s else left
        if passes:
            thread.free_at = ahead.start + passes * thread.pass_s
            self._model.advance(passes)
            self._record.wasted += passes
            self._ahead_s = thread.pass_s
            self.rule.drafted(passes, passes * thread.pass_s)
