"""What a figure is: raw samples of every repeat, the ratios read from them, and where they come from."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One comparison: above 1 OpenSLED is the better one, below 1 it loses."""

    name: str
    ours: str  # a series of the figure
    against: str  # another one, measured in turns with it
    required: float | None = None  # the project's own bar; None = reported only


@dataclass(frozen=True)
class Figure:
    """A finished measurement."""

    title: str
    unit: str  # of the samples: "rounds/s", "ms", "MiB"
    more_is_better: bool
    compared: str  # precisely what against what
    loses: str  # where OpenSLED is the worse one, and why
    samples: Mapping[str, list[float]]  # series -> one value for each repeat
    ratios: tuple[Comparison, ...] = ()
    label: str = "real"  # or "emulated", "simulated"
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else was fixed: threads, contexts, sizes

    def of_each_repeat(self, ratio: Comparison) -> list[float]:
        """Ours over the other, repeat by repeat, so that a drift of the machine hits both."""
        pairs = zip(self.samples[ratio.ours], self.samples[ratio.against])
        return [ours / other if self.more_is_better else other / ours for ours, other in pairs]

    def as_json(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "title": self.title,
            "label": self.label,
            "unit": self.unit,
            "better": "more" if self.more_is_better else "less",
            "compared": self.compared,
            "loses": self.loses,
            "ratios": [self._ratio(ratio) for ratio in self.ratios],
            "medians": {name: _short(statistics.median(each)) for name, each in self.samples.items()},
            "facts": dict(self.facts),
            "provenance": dict(provenance),
            "samples": {name: [_short(value) for value in each] for name, each in self.samples.items()},
        }

    def _ratio(self, ratio: Comparison) -> dict[str, Any]:
        each = self.of_each_repeat(ratio)
        return {
            "name": ratio.name,
            "ours": ratio.ours,
            "against": ratio.against,
            "ratio": _short(statistics.median(each)),
            "lowest": _short(min(each)),
            "highest": _short(max(each)),
            "required": ratio.required,
        }


def _short(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def in_turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """A B A B ...: each contender's samples, after one turn that only warms up."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            value = run()
            if turn:
                samples[name].append(value)
    return samples
