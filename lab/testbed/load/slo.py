"""What a user was promised, and who of a run's users got it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from lab.testbed.load.records import RequestRecord, RunResult

SHARE = 0.9  # of the users of a capacity that must be served at their pace
LONE_S = 1.0  # seconds that stand for the longest wait where one arrival says nothing of waits


@dataclass(frozen=True)
class Slo:
    """A promise to each user. `pace` decides capacity; the limits decide goodput, as vLLM's do."""

    pace: float = 10.0  # tokens/s at which the user reads, from the first token of an answer to the last
    ttft_s: float = inf  # seconds to the first token
    tpot_s: float = inf  # seconds for each token after the first
    e2el_s: float = inf  # seconds to the last token


def measured(result: RunResult) -> list[RequestRecord]:
    """The finished requests of the measured window."""
    return [
        record
        for record in result.requests
        if result.start <= record.sent and record.finish_reason and not record.error
    ]


def pace_of(requests: Iterable[RequestRecord], start: float = -inf, end: float = inf) -> float:
    """Tokens/s over the requests of one user: tokens after each first arrival, over the time they took.

    What was read between `start` and `end` counts, of answers that began before and of those that were not finished
    then as well: else users with long answers would have few that count, or none.
    """
    tokens = seconds = 0.0
    for record in requests:
        read = [arrival for arrival in record.arrivals if start <= arrival.time <= end]
        tokens += sum(arrival.tokens for arrival in read[1:])
        seconds += _reading([arrival.time for arrival in read], bool(record.finish_reason), end)
    return tokens / seconds if seconds else inf


def _reading(times: Sequence[float], is_finished: bool, end: float) -> float:
    """Seconds from the first arrival to the last, or to `end` where the next takes twice the longest wait so far."""
    if not times:
        return 0.0
    last = times[-1]
    longest = max((later - earlier for earlier, later in pairwise(times)), default=LONE_S)
    stalls = not is_finished and 2 * longest < end - last < inf
    return (end if stalls else last) - times[0]


def paces(result: RunResult) -> dict[int, float]:
    """Each user's pace in the measured window; a user who asked and read nothing has 0."""
    by_user: dict[int, list[RequestRecord]] = {record.user: [] for record in result.requests}
    for record in result.requests:
        if not record.error and any(arrival.time >= result.start for arrival in record.arrivals):
            by_user[record.user].append(record)
    window = result.start, result.end
    return {user: pace_of(records, *window) if records else 0.0 for user, records in by_user.items()}


def served(result: RunResult, slo: Slo) -> int:
    """Users whose pace was kept."""
    return sum(pace >= slo.pace for pace in paces(result).values())


def holds(result: RunResult, slo: Slo) -> bool:
    """Whether SHARE of the users were served at their pace: the run's load is within the capacity."""
    count = len(paces(result))
    return count > 0 and served(result, slo) >= SHARE * count
