"""How well a simulation foretells an emulated run of the same fleet and load."""

import statistics
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from lab.testbed.load.records import RunResult
from lab.testbed.load.slo import paces


def compare(emulated: RunResult, simulated: RunResult) -> dict[str, dict[str, float]]:
    """Each of FIGURES that both runs have: both values, and `error`, the simulated one's relative to the emulated one.

    Without rounds there are no tokens per round, and without a server no positions; such a figure is left out.
    """
    found = {}
    for name, figure in FIGURES.items():
        real, ours = figure(emulated), figure(simulated)
        if real and ours is not None:
            found[name] = {"emulated": real, "simulated": ours, "error": ours / real - 1}
    return found


def throughput(result: RunResult) -> float | None:
    """Tokens/s that reached users within the measured window, of whole answers or not."""
    arrivals = (arrival for request in result.requests for arrival in request.arrivals)
    tokens = sum(arrival.tokens for arrival in arrivals if result.start <= arrival.time < result.end)
    return tokens / (result.end - result.start)


def pace(result: RunResult) -> float | None:
    """Mean pace of the users who had an answer of more than one chunk, tokens/s."""
    known = [value for value in paces(result).values() if value and isfinite(value)]
    return statistics.fmean(known) if known else None


def tokens_per_round(result: RunResult) -> float | None:
    """Accepted tokens and the one after them, over rounds answered within the window."""
    rounds = [round for request in result.requests for round in request.rounds]
    answered = [round.accepted + 1 for round in rounds if result.start <= round.answered < result.end]
    return statistics.fmean(answered) if answered else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


FIGURES: Mapping[str, Callable[[RunResult], Any]] = {
    "throughput": throughput,
    "pace": pace,
    "tokens_per_round": tokens_per_round,
    "positions_per_token": lambda run: _ratio(run.server.positions, run.server.tokens),
    "batch": lambda run: _ratio(run.server.step_sessions, run.server.steps),
}
