"""Which drafts a plan or a grid rests on: recorded with a pair of models, or made up with a given acceptance."""

from functools import cache
from typing import NamedTuple

from lab.testbed.planner.acceptance import adapted
from lab.testbed.planner.task_acceptance import TASKS, rate_of
from lab.testbed.recordings import DEFAULT_PAIR, PAIRS, check_pair, recording
from lab.testbed.traces import TraceSet, read_traces


class RecordedDrafts(NamedTuple):
    """Drafts recorded with `pair`; with an `acceptance`, made-up ones of which that share is right, on its texts."""

    pair: str = DEFAULT_PAIR
    acceptance: str = ""  # a name of TASKS or a number; "" = as recorded

    @property
    def rate(self) -> float | None:
        """None for recorded drafts."""
        return rate_of(self.acceptance) if self.acceptance else None

    @property
    def name(self) -> str:
        """A word for files and tables."""
        return self.acceptance or self.pair

    @property
    def words(self) -> str:
        """For headings: "Drafts ..."."""
        if self.rate is None:
            return f"as recorded with {PAIRS[self.pair].words}"
        task = TASKS.get(self.acceptance)
        return f"made up, {self.rate:g} of them right" + (f", as on {task.words}" if task else "")


DEFAULT = RecordedDrafts()


@cache
def traces_of(source: RecordedDrafts) -> TraceSet:
    """Texts and drafts; raises UsageError for a pair that is not recorded."""
    check_pair(source.pair)
    traces = read_traces(recording(source.pair))
    return traces if source.rate is None else adapted(traces, source.rate)
