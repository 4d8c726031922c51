"""Which drafts a plan or a grid rests on: recorded with a pair of models, or made up with a given acceptance."""

from functools import cache
from typing import NamedTuple

from lab.testbed.planner.acceptance import adapted
from lab.testbed.planner.task_acceptance import TASKS, rates_of
from lab.testbed.recordings import DEFAULT_PAIR, PAIRS, check_pair, recording
from lab.testbed.traces import TraceSet, read_traces


class RecordedDrafts(NamedTuple):
    """Drafts recorded with `pair`; with an `acceptance`, made-up ones of which that share is right, on its texts."""

    pair: str = DEFAULT_PAIR
    acceptance: str = ""  # a name of TASKS, a trained head or a number; "" = as recorded

    @property
    def rates(self) -> tuple[float, ...]:
        """By place; () for recorded drafts."""
        return rates_of(self.acceptance)

    @property
    def rate(self) -> float | None:
        """At the first place; None for recorded drafts."""
        return self.rates[0] if self.rates else None

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
        rates = ", ".join(f"{rate:.3g}" for rate in self.rates)
        return f"made up, {rates} of them right" + (f", as on {task.words}" if task else "")


DEFAULT = RecordedDrafts()


@cache
def traces_of(source: RecordedDrafts) -> TraceSet:
    """Texts and drafts; raises UsageError for a pair that is not recorded."""
    check_pair(source.pair)
    traces = read_traces(recording(source.pair))
    return adapted(traces, *source.rates) if source.rates else traces
