"""The simulated drafter: recorded drafts of one device, replayed on the clock of the events."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from edge_client.lengths.base import DraftLengthPolicy
from edge_client.round.draft_job import BlockBudget, Result, Work
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.replay import ReplayDrafts
from lab.testbed.load.records import RequestRecord
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.sequences import Script
from lab.testbed.traces import ItemTrace
from opensled.core.protocol import Truth


class Ready:
    """What an asyncio future is to the edge loop, without an event loop: the result of work, once it is done."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    def done(self) -> bool:
        """Whether the result is there."""
        return bool(self._results)

    def result(self) -> Any:
        """The result."""
        return self._results[0]

    def set_result(self, result: Any) -> None:
        """The work is done."""
        self._results.append(result)


class SimulatedDrafts(ReplayDrafts):
    """What the answers of one device share; it drafts for one of them at a time."""

    def __init__(
        self, events: Events, speed: DraftSpeed | None, lengths: DraftLengthPolicy, looks_ahead: bool
    ) -> None:
        super().__init__({}, speed, lengths, 1.0, looks_ahead, lambda: events.now, events.at)
        self._waiting = Ready()
        self._counted = 0
        self._answers = 0  # that it has drafted for

    def take(self, script: Script, record: RequestRecord, done: Callable[[], None]) -> None:
        """Draft for this answer from now on; `done` hears of each block, and `record` counts what is drafted.

        The whole prompt is read for each answer: what recorded prompts have in common says nothing of real ones.
        """
        self._model.close()
        self._answers += 1
        self._script, self._record, self._told = script, record, done

    def draft(self, truth: Truth, budget: BlockBudget) -> Any:
        self._count()
        self._waiting = waiting = cast(Ready, super().draft(truth, budget))
        return waiting

    def hear(self, truth: Truth) -> None:
        """See `Drafting`; a block that waits for its first pass may end here."""
        super().hear(truth)
        if not self._waiting.done():
            self._pace.hurry()

    def interrupt(self) -> None:
        """See `Drafting`; the token under way is still drafted, and what was to follow it is not."""
        super().interrupt()
        self._count()

    def _recorded(self, truth: Truth) -> ItemTrace:
        return self._script.trace

    def _run(self, work: Work[Result]) -> Any:
        ready = Ready()
        self._pace.run(work, partial(self._finish, self._answers, ready))
        return ready

    def _finish(self, answer: int, ready: Ready, result: object) -> None:
        if answer == self._answers:  # else it was for one that is over
            self._count()
            ready.set_result(result)
            self._told()

    def _count(self) -> None:
        """All tokens count as wasted until they are accepted."""
        self._record.wasted += self.drafted - self._counted
        self._counted = self.drafted
