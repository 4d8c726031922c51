"""What a server counts of whole answers, as those who asked wait for them: by tenant, and by the route they came on.

The names are vLLM's where it has the metric. The time per token is the mean of an answer, as drafts and slow readers
make single gaps mean little.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opensled.metrics.registry import SECONDS, Histogram, Histograms, Labels, Metric

CANCELLED = "cancelled"  # as a finish reason: who asked left before the end
ENDS = ("eos", "stop", "length", CANCELLED)
GRPC = "grpc"  # the route of devices; those of HTTP are paths
OTHER = "other"  # a route that gives no answers; and all tenants that came after the first MOST pairs
MOST = 256  # pairs of route and tenant. Chosen: each has some 6 KB of text at a scrape
WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # upper bounds in seconds
LABELS = "route,tenant"


@dataclass
class RouteCounts:
    """Of one tenant's answers on one route."""

    # each end begins at 0, so that rates are right from the first answer on
    ended: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ENDS, 0)))
    errors: Counter[str] = field(default_factory=Counter)  # requests, by code
    prompt_tokens: int = 0
    tokens: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    per_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    whole: Histogram = field(default_factory=lambda: Histogram(WHOLE))

    def include(self, other: RouteCounts) -> None:
        """Count its answers, too."""
        self.ended.update(other.ended)
        self.errors.update(other.errors)
        self.prompt_tokens += other.prompt_tokens
        self.tokens += other.tokens
        self.first_token.include(other.first_token)
        self.per_token.include(other.per_token)
        self.whole.include(other.whole)


# Of each (route, tenant)
Counted = tuple[tuple[tuple[str, str], RouteCounts], ...]


class AnswerCounts:
    """Those of all tenants and routes of one server, or of several together."""

    def __init__(self, *others: Counted) -> None:
        self._found: dict[tuple[str, str], RouteCounts] = {}
        for counted in others:
            self.include(counted)

    def of(self, tenant: str, route: str) -> RouteCounts:
        """Names of tenants come from the token file or from certificates, so they are many at most, never endless."""
        key = (route, tenant)
        if key not in self._found and len(self._found) >= MOST:
            key = (route, OTHER)
        if key not in self._found:
            self._found[key] = RouteCounts()
        return self._found[key]

    def include(self, counted: Counted) -> None:
        """Count these answers, too."""
        for (route, tenant), counts in counted:
            self.of(tenant, route).include(counts)

    def now(self) -> Counted:
        """What is counted, and goes on; may be called from any thread."""
        return tuple(self._found.items())


class AnswerClock:
    """One answer under way."""

    def __init__(self, counts: RouteCounts, began: float, timed: bool = True) -> None:
        """`began`: when the request arrived, on the monotonic clock; not `timed`: a part of the answer came before."""
        self._counts, self._began, self._timed = counts, began, timed
        self._first = self._last = 0.0  # when the first and the latest token left
        self.tokens = 0

    def count_tokens(self, tokens: int) -> None:
        """So many further tokens have left."""
        if tokens <= 0:
            return
        self._last = time.monotonic()
        if not self.tokens:
            self._first = self._last
            if self._timed:
                self._counts.first_token.add(self._first - self._began)
        self.tokens += tokens
        self._counts.tokens += tokens

    def count_end(self, reason: str) -> None:
        """The answer is over. An error is none of its ends, and counts once for a request."""
        counts = self._counts
        counts.ended[reason] += 1
        if reason == CANCELLED or not self._timed:
            return
        counts.whole.add(time.monotonic() - self._began)
        if self.tokens > 1:
            counts.per_token.add((self._last - self._first) / (self.tokens - 1))


Now = Callable[[], Counted]
Numbers = Callable[[], Mapping[Labels, float]]


def answer_metrics(now: Now) -> list[Metric]:
    """All metrics of answers, which `now` gives at each scrape."""
    return [
        Metric(
            "time_to_first_token_seconds",
            "From the request to its first token.",
            _histograms(now, lambda each: each.first_token),
            LABELS,
        ),
        Metric(
            "request_time_per_output_token_seconds",
            "Mean time per token of an answer after its first token.",
            _histograms(now, lambda each: each.per_token),
            LABELS,
        ),
        Metric(
            "e2e_request_latency_seconds",
            "From the request to the end of its answer.",
            _histograms(now, lambda each: each.whole),
            LABELS,
        ),
        Metric(
            "request_success_total",
            "Answers by their end.",
            _kinds(now, lambda each: each.ended),
            f"finished_reason,{LABELS}",
        ),
        Metric(
            "errors_total",
            "Requests that ended with an error, refused ones included.",
            _kinds(now, lambda each: each.errors),
            f"code,{LABELS}",
        ),
        Metric(
            "prompt_tokens_total",
            "Tokens of their prompts.",
            _numbers(now, lambda each: each.prompt_tokens),
            LABELS,
        ),
        Metric(
            "generation_tokens_total", "Tokens of answers.", _numbers(now, lambda each: each.tokens), LABELS
        ),
    ]


def _histograms(now: Now, of: Callable[[RouteCounts], Histogram]) -> Callable[[], Histograms]:
    return lambda: Histograms({key: of(each) for key, each in now()})


def _numbers(now: Now, of: Callable[[RouteCounts], int]) -> Numbers:
    return lambda: {key: of(each) for key, each in now()}


def _kinds(now: Now, of: Callable[[RouteCounts], Mapping[str, int]]) -> Numbers:
    return lambda: {(kind, *key): number for key, each in now() for kind, number in dict(of(each)).items()}
