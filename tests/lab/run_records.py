"""Records of requests that were never asked, with times that can be reckoned by hand."""

from typing import Any

from lab.testbed.load.records import Arrival, RequestRecord, RunResult, ServerTotals

START, END = 10.0, 20.0  # the measured window


def record(
    user: int = 0,
    sent: float = START,
    arrivals: tuple[tuple[float, int], ...] = ((10.5, 1), (11.0, 3), (12.0, 4)),
    **changes: Any,
) -> RequestRecord:
    """A finished request of 5 prompt tokens; `changes` are fields of it."""
    found = RequestRecord(user, 0, "item", sent, sent, prompt_tokens=5, finish_reason="eos")
    found.arrivals = [Arrival(*arrival) for arrival in arrivals]
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def result(*records: RequestRecord, **totals: Any) -> RunResult:
    """A run of `records`; `totals` are the server's."""
    return RunResult("emulated", START, END, list(records), ServerTotals(**totals))
