"""Metrics that device and server share: plain counters on the hot path; Prometheus only at a scrape.

Counters are integers that their owners increase. `metrics_port` serves them in the Prometheus text format; only then
is the library imported. Names begin with `opensled:`, as vLLM's begin with `vllm:`.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import opensled
from opensled.metrics.scrape_guard import ScrapeGuard
from opensled.net.probes import Probes
from opensled.process.logs import show

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PREFIX = "opensled:"

# Upper bounds in seconds: from one token on a fast GPU to a long prompt on a slow hub.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Labels = str | tuple[str, ...]  # the value of one label, or of several


class Histogram:
    """Counts of observations by size; `bounds` are the upper bounds of its buckets, ascending."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(map(float, bounds))
        self.counts = [0] * (len(self.bounds) + 1)  # the last one: beyond every bound
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def include(self, other: Histogram) -> None:
        """Count its observations, too; it has the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts)]
        self.sum += other.sum


@dataclass
class DraftCounts:
    """Results of draft blocks; an empty block is no draft.

    A late block counts as a block without accepted tokens, on both ends.
    """

    drafts: int = 0
    tokens: int = 0  # proposed
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, tokens: int, accepted: int) -> None:
        """One answered block of `tokens` draft tokens, of which the first `accepted` undecided ones are accepted."""
        self.drafts += 1
        self.tokens += tokens
        self.accepted += accepted
        while len(self.accepted_per_position) < accepted:
            self.accepted_per_position.append(0)
        for position in range(accepted):
            self.accepted_per_position[position] += 1


@dataclass(frozen=True)
class Histograms:
    """Histograms by the values of their labels."""

    found: Mapping[Labels, Histogram]


# What one metric reads: a number or a histogram, or several by the values of its labels.
Reading = float | Mapping[str, float] | Mapping[Labels, float] | Histogram | Histograms


@dataclass(frozen=True)
class Metric:
    """One metric: `read` is called at each scrape, in the thread of the metrics port."""

    name: str  # without prefix; a counter's ends in _total
    help: str
    read: Callable[[], Reading]
    # Whose values `read` maps from. Of several, as "route,tenant", it maps from tuples; in alphabetical order, as they
    # are written at a scrape.
    label: str = ""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def labels(self) -> list[str]:
        return self.label.split(",") if self.label else []


def label_values(labels: Labels) -> tuple[str, ...]:
    """The values of all labels of one reading."""
    return (labels,) if isinstance(labels, str) else labels


def draft_metrics(counts: DraftCounts) -> list[Metric]:
    """The four metrics of speculation, named as vLLM and llama-server name theirs."""
    return [
        Metric("spec_decode_num_drafts_total", "Draft blocks answered.", lambda: counts.drafts),
        Metric("spec_decode_num_draft_tokens_total", "Tokens proposed in them.", lambda: counts.tokens),
        Metric("spec_decode_num_accepted_tokens_total", "Tokens of them accepted.", lambda: counts.accepted),
        Metric(
            "spec_decode_num_accepted_tokens_per_pos_total",
            "Tokens accepted, by position in the draft; 0 is the first undecided token.",
            lambda: {str(at): count for at, count in enumerate(tuple(counts.accepted_per_position))},
            label="position",
        ),
    ]


def model_metric(names: Callable[[], Iterable[str]]) -> Metric:
    """Which model is served: a sample of 1 with its name, for each of `names`."""
    return Metric("model_info", "1 for the model that is served.", lambda: dict.fromkeys(names(), 1), "model")


def build_metric() -> Metric:
    """Which build this is: a sample of 1 with its versions."""
    versions: Labels = platform.python_version(), opensled.__version__
    return Metric("build_info", "1 for this build.", lambda: {versions: 1.0}, "python,version")


def registry(metrics: Sequence[Metric]) -> CollectorRegistry:
    """A registry of `metrics`, which may get more later, and of this process's memory, CPU and open files."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    made = CollectorRegistry()
    made.register(_Collector(metrics))
    ProcessCollector(registry=made)
    return made


def add_to_page(metrics: Sequence[Metric]) -> None:
    """Add `metrics` to the page of the program that this code is a plug-in of."""
    from prometheus_client import REGISTRY

    REGISTRY.register(_Collector(metrics))


def page_of(made: CollectorRegistry) -> tuple[bytes, str]:
    """The metrics of a registry as text, and the content type of that text."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return generate_latest(made), CONTENT_TYPE_LATEST


@contextmanager
def metrics_port(
    address: str, metrics: Sequence[Metric], probes: Probes = Probes(), guard: ScrapeGuard = ScrapeGuard()
) -> Iterator[None]:
    """A MetricsPort while inside, of `metrics`, which may get more later, and of `probes`; without an address None, and
    the library is not loaded."""
    if not address:
        yield
        return
    from opensled.metrics.exposition import MetricsPort

    with closing(MetricsPort(address, metrics, probes, guard)) as port:
        show(f"metrics on {port.url}")
        yield


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every sample in the Prometheus text format; raises ValueError for other text."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, dict(sample.labels), float(sample.value)


class _Collector:
    """Reads our counters at each scrape."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Any]:
        return [_family(metric) for metric in self._metrics]


def _family(metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    reading, labels = metric.read(), metric.labels
    if isinstance(reading, Histogram):
        reading = Histograms({(): reading})
    if isinstance(reading, Histograms):
        histograms = HistogramMetricFamily(metric.full_name, metric.help, labels=labels)
        for values, each in reading.found.items():
            buckets, total = _cumulative(each)
            histograms.add_metric(label_values(values), buckets, total)
        return histograms
    kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
    family = kind(metric.full_name, metric.help, labels=labels)
    for values, number in (dict(reading) if isinstance(reading, Mapping) else {(): reading}).items():
        family.add_metric(label_values(values), number)
    return family


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Buckets in Prometheus's form: (upper bound, observations up to it), the last one without bound."""
    counts, total = tuple(histogram.counts), histogram.sum  # a copy: the owner continues to add
    buckets, below = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), counts):
        below += count
        buckets.append((bound, float(below)))
    return buckets, total
