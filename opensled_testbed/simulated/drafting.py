"""The simulated drafter: recorded drafts of one device, replayed on the clock of the events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_client.draft_job import BlockBudget, Drafted
from edge_client.lengths.base import DraftLengthPolicy
from hw_profiles.device_profile import DraftSpeed
from opensled.protocol import Truth
from opensled_testbed.emulation.replay import ReplayDrafts
from opensled_testbed.load.records import RequestRecord
from opensled_testbed.simulated.drafts import Script
from opensled_testbed.simulated.events import Events
from opensled_testbed.traces import ItemTrace


class Ready:
    """A block that is drafted later, or now, without an event loop."""

    def __init__(self, drafted: Drafted | None = None) -> None:
        self._drafted = drafted

    def done(self) -> bool:
        """Whether the block is there."""
        return self._drafted is not None

    def result(self) -> Drafted:
        """The block."""
        assert self._drafted is not None, "asked only once it is there"
        return self._drafted

    def set_result(self, drafted: Drafted) -> None:
        """The block is there."""
        self._drafted = drafted


class SimulatedDrafts(ReplayDrafts):
    """What the answers of one device share; it drafts for one of them at a time."""

    def __init__(
        self, events: Events, speed: DraftSpeed | None, lengths: DraftLengthPolicy, looks_ahead: bool
    ) -> None:
        super().__init__({}, speed, lengths, 1.0, looks_ahead, lambda: events.now, events.at, Ready)
        self._counted = 0

    def take(self, script: Script, record: RequestRecord, done: Callable[[], None]) -> None:
        """Draft for this answer from now on; `done` hears of each block, and `record` counts what is drafted.

        The whole prompt is read for each answer: what recorded prompts have in common says nothing of real ones.
        """
        self._model.close()
        self._script, self._record, self._told = script, record, done

    def draft(self, truth: Truth, budget: BlockBudget) -> Any:
        """See `Drafting`."""
        self._count()
        return super().draft(truth, budget)

    def heard(self, truth: Truth) -> None:
        """See `Drafting`; a block that waits for its first pass may end here."""
        super().heard(truth)
        if self._waiting is not None:
            self._pace.hurry()

    def _recorded(self, truth: Truth) -> ItemTrace:
        return self._script.trace

    def _done(self, drafted: Drafted) -> None:
        self._count()
        super()._done(drafted)
        self._told()

    def _count(self) -> None:
        """All tokens count as wasted until they are accepted."""
        self._record.wasted += self.drafted - self._counted
        self._counted = self.drafted
