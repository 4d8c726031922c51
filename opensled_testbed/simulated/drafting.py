"""The simulated drafter: the product's job over recorded drafts, on the clock of the events.

The simulated device knows lengths of the text; here they become tokens, and blocks become lengths again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edge_client import draft_job
from edge_client.draft_job import BlockBudget, DraftJob
from edge_client.lengths.base import DraftLengthPolicy
from hw_profiles.device_profile import DraftSpeed
from opensled.messages import DraftBlock, SamplingParams
from opensled.sampling import Sampler
from opensled_testbed.emulation.draft_pace import DraftPace
from opensled_testbed.emulation.recorded_model import RecordedModel
from opensled_testbed.load.records import RequestRecord
from opensled_testbed.simulated.drafts import Block, Script
from opensled_testbed.simulated.events import Events

UNUSED = Sampler(SamplingParams(), b"")  # what was recorded is not drawn again


class Drafted(NamedTuple):
    """A block, and how many seconds it took to propose."""

    block: Block
    seconds: float


class Thread:
    """What the answers of one device share: its draft model's time, and the rule of its blocks."""

    __slots__ = ("looks_ahead", "pace", "rule")

    def __init__(
        self, events: Events, speed: DraftSpeed | None, rule: DraftLengthPolicy, looks_ahead: bool
    ) -> None:
        self.rule, self.looks_ahead = rule, looks_ahead
        self.pace = DraftPace(speed, lambda: events.now, events.at)

    def begin(self, script: Script, record: RequestRecord, done: Callable[[Drafted], None]) -> Drafting:
        """Draft for one answer; `done` hears of each block, and `record` counts what is drafted."""
        return Drafting(self, script, record, done)


class Drafting:
    """`Drafting` for one answer, with the methods of that protocol; the prompt is read with the first block."""

    __slots__ = ("_done", "_job", "_latest", "_record", "_script", "_thread", "idle")

    def __init__(
        self, thread: Thread, script: Script, record: RequestRecord, done: Callable[[Drafted], None]
    ) -> None:
        self._thread, self._script, self._record, self._done = thread, script, record, done
        model = RecordedModel(thread.pace.spend)
        model.trace = script.trace
        self._job = DraftJob(model, thread.rule, script.prompt)
        self._job.begin(script.trace.prompt_ids, UNUSED)
        self._latest = DraftBlock(0)
        self.idle = True  # whether no block is under way

    @property
    def rule(self) -> DraftLengthPolicy:
        return self._thread.rule

    def draft(self, truth: int, hint: int | None) -> None:
        """A block that follows `truth` tokens of the text."""
        self._count()
        self.idle = False
        work = self._job.draft(self._script.truth(truth), BlockBudget(self._script.room(truth), hint=hint))
        self._thread.pace.run(work, self._finish)

    def look_ahead(self, block: Block, hint: int | None) -> None:
        """Draft on: the bonus token that is guessed, and after it the next block."""
        if self._thread.looks_ahead:
            room = self._script.room(block.base + block.tokens + 1)
            work = self._job.look_ahead(self._latest.first(block.tokens), BlockBudget(room, hint=hint))
            if work is not None:
                self._thread.pace.run(work)

    def heard(self, truth: int) -> None:
        """The truth grew; a block that waits for its first pass may end here."""
        self._job.heard(self._script.truth(truth))
        if not self.idle:
            self._thread.pace.hurry()

    def answered(self, block: Block, truth: int, seconds: float) -> None:
        """Tell the rule what came of the latest block."""
        accepted = min(block.reach, truth - block.base)
        self.rule.answered(self._latest.first(block.tokens), accepted, seconds)

    def end(self) -> None:
        """The answer is whole: the token under way is still drafted, and what was to follow it is not."""
        self._job.interrupt()
        self._count()

    def _finish(self, drafted: draft_job.Drafted) -> None:
        if self._job.over:
            return
        self.idle = True
        self._count()
        self._latest = block = drafted.block
        found = self._script.block(block.base - self._script.prompt, len(block.tokens))
        self._done(Drafted(found, drafted.seconds))

    def _count(self) -> None:
        """All tokens count as wasted until they are accepted."""
        pace = self._thread.pace
        self._record.wasted += pace.passes
        pace.passes = 0
