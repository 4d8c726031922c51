"""What a user was promised, and who of a run's users got it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from opensled_testbed.load.records import RequestRecord, RunResult

SHARE = 0.9  # of the users of a capacity that must be served at their pace


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


def pace_of(requests: Iterable[RequestRecord]) -> float:
    """Tokens/s over the requests of one user: tokens after each first arrival, over the time they took."""
    tokens = seconds = 0.0
    for record in requests:
        first, last = record.arrivals[0], record.arrivals[-1]
        tokens += record.tokens - first.tokens
        seconds += last.time - first.time
    return tokens / seconds if seconds else inf


def paces(result: RunResult) -> dict[int, float]:
    """Each user's pace; a user who asked and has no finished answer has 0."""
    by_user: dict[int, list[RequestRecord]] = {record.user: [] for record in result.requests}
    for record in measured(result):
        by_user[record.user].append(record)
    return {user: pace_of(records) if records else 0.0 for user, records in by_user.items()}


def served(result: RunResult, slo: Slo) -> int:
    """Users whose pace was kept."""
    return sum(pace >= slo.pace for pace in paces(result).values())


def holds(result: RunResult, slo: Slo) -> bool:
    """Whether SHARE of the users were served at their pace: the run's load is within the capacity."""
    count = len(paces(result))
    return count > 0 and served(result, slo) >= SHARE * count
