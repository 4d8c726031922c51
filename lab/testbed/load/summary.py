"""The figures of one run, under vLLM's names and by its formulas (`vllm bench serve`), and ours beside them.

Latencies are those of the requests that were sent within the measured window and finished in it: TTFT from sending to
the first token, TPOT = (latency - TTFT) / (tokens - 1), ITL between chunks (a verdict's tokens come in one), E2EL from
sending to the last token. Throughput counts what happened within the window, whenever it was asked for: a window that
ends cuts answers, and a mean over finished ones alone would be too low and would favour short answers.
"""

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from lab.testbed.load.records import RequestRecord, Round, RunResult
from lab.testbed.load.slo import Slo, measured, paces, served

RELEASE_S = 0.5  # after so long without a verdict SLED (arXiv 2506.09397) shows a draft unverified
DIGITS = 6  # significant ones: more would be noise


def summarise(result: RunResult, slo: Slo, release_s: float = RELEASE_S) -> dict[str, Any]:
    """All figures of a run; times in ms where the name says so, else in seconds. 0 where there was nothing to count."""
    every = {
        **_throughput(result, slo),
        **_latencies(measured(result)),
        **_users(result, slo),
        **_speculation(result),
        **_released(_rounds(result), release_s),
        **_server(result),
        **_traffic(result),
    }
    return {name: _short(value) for name, value in every.items()}


def ttft(record: RequestRecord) -> float:
    """Seconds from sending to the first token."""
    return record.arrivals[0].time - record.sent


def e2el(record: RequestRecord) -> float:
    """Seconds from sending to the last token."""
    return record.arrivals[-1].time - record.sent


def tpot(record: RequestRecord) -> float:
    """Seconds for each token after the first one; 0 for an answer of one token, as vLLM counts it."""
    return (e2el(record) - ttft(record)) / (record.tokens - 1) if record.tokens > 1 else 0.0


def itl(record: RequestRecord) -> list[float]:
    """Seconds between chunks."""
    return [later.time - earlier.time for earlier, later in pairwise(record.arrivals)]


def meets(record: RequestRecord, slo: Slo) -> bool:
    """Whether a finished request was as fast as promised, in all that was."""
    return ttft(record) <= slo.ttft_s and tpot(record) <= slo.tpot_s and e2el(record) <= slo.e2el_s


def _throughput(result: RunResult, slo: Slo) -> dict[str, float]:
    duration = result.end - result.start
    finished = [record for record in result.requests if _finished_within(record, result)]
    prompts = sum(record.prompt_tokens for record in finished)
    tokens = sum(
        arrival.tokens
        for record in result.requests
        for arrival in record.arrivals
        if result.start <= arrival.time <= result.end
    )
    return {
        "duration": duration,
        "completed": len(finished),
        "failed": sum(bool(record.error) for record in result.requests if result.start <= record.sent),
        "total_input_tokens": prompts,
        "total_output_tokens": tokens,
        "request_throughput": len(finished) / duration,
        "request_goodput": sum(meets(record, slo) for record in finished) / duration,
        "output_throughput": tokens / duration,
        "total_token_throughput": (prompts + tokens) / duration,
    }


def _finished_within(record: RequestRecord, result: RunResult) -> bool:
    if not record.finish_reason or record.error:
        return False
    return result.start <= record.arrivals[-1].time <= result.end


def _latencies(requests: Sequence[RequestRecord]) -> dict[str, float]:
    series = {
        "ttft": [ttft(record) for record in requests],
        "tpot": [tpot(record) for record in requests if record.tokens > 1],
        "itl": [gap for record in requests for gap in itl(record)],
        "e2el": [e2el(record) for record in requests],
    }
    return {name: value for each, values in series.items() for name, value in _spread(each, values).items()}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Four figures, in ms; the deviation is that of a population, as vLLM's."""
    found = np.array(values or [0.0]) * 1000
    return {
        f"mean_{name}_ms": float(found.mean()),
        f"median_{name}_ms": float(np.median(found)),
        f"std_{name}_ms": float(found.std()),
        f"p99_{name}_ms": float(np.percentile(found, 99)),
    }


def _users(result: RunResult, slo: Slo) -> dict[str, float]:
    """Paces of all users. Answers that came in one piece have none; their users are left out of it."""
    found = [pace for pace in paces(result).values() if isfinite(pace)] or [0.0]
    return {
        "users": len(paces(result)),
        "served": served(result, slo),
        "pace_mean": statistics.fmean(found),
        "pace_median": statistics.median(found),
        "pace_p10": float(np.percentile(found, 10)),
    }


def _asked_within(result: RunResult) -> list[RequestRecord]:
    return [record for record in result.requests if result.start <= record.sent]


def _rounds(result: RunResult) -> list[Round]:
    """Of the requests sent within the window, finished or not."""
    return [each for record in _asked_within(result) for each in record.rounds]


def _speculation(result: RunResult) -> dict[str, Any]:
    rounds = _rounds(result)
    drafted, accepted = (sum(getattr(each, name) for each in rounds) for name in ("drafted", "accepted"))
    wasted = sum(record.wasted for record in _asked_within(result))
    return {
        "acceptance_rate": _ratio(accepted, drafted),
        "acceptance_per_position": [_short(share) for share in _per_position(rounds)],
        "tokens_per_round": 1 + accepted / len(rounds) if rounds else 0.0,
        "drafted_tokens": accepted + wasted,
        "wasted_draft_tokens": wasted,
        "wasted_share": _ratio(wasted, accepted + wasted),
    }


def _per_position(rounds: Sequence[Round]) -> Iterator[float]:
    """Share of the rounds that drafted a position in which its token was accepted."""
    for position in range(max((each.drafted for each in rounds), default=0)):
        reached = [each for each in rounds if each.drafted > position]
        yield sum(each.accepted > position for each in reached) / len(reached)


def _released(rounds: Sequence[Round], release_s: float) -> dict[str, int]:
    """Tokens that a device would have shown unverified after `release_s`, and those of them that were wrong."""
    late = [each for each in rounds if each.answered - each.sent > release_s]
    return {
        "released_unverified": sum(each.drafted for each in late),
        "released_wrong": sum(each.drafted - each.accepted for each in late),
    }


def _server(result: RunResult) -> dict[str, float]:
    server = result.server
    return {
        "positions_per_token": _ratio(server.positions, server.tokens),
        "steps": server.steps,
        "mean_batch": _ratio(server.step_sessions, server.steps),
        "busy_share": server.busy_s / (result.end - result.start),
        "stale_drafts": server.stale_drafts,
    }


def _traffic(result: RunResult) -> dict[str, float]:
    asked = _asked_within(result)
    tokens = sum(record.tokens for record in asked)
    return {
        "bytes_up_per_token": _ratio(sum(record.bytes_up for record in asked), tokens),
        "bytes_down_per_token": _ratio(sum(record.bytes_down for record in asked), tokens),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
