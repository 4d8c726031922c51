"""What a measurement leaves behind: every run's figures, their means with intervals, and where they come from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.testbed.fleet import Fleet
from lab.testbed.load.interval import Interval, interval
from lab.testbed.load.load import Item, Load
from lab.testbed.load.records import RunResult
from lab.testbed.load.slo import Slo, measured
from lab.training.tasks import TASKS

TITLE = "Load on a fleet"
CHECKS = {task.name: task.check for task in TASKS if task.check}  # whether an answer is right


@dataclass(frozen=True)
class RunFigures:
    """One run of one contender."""

    contender: str  # a baseline, or "url"
    repeat: int
    summary: dict[str, Any]
    errors: list[str]  # the different ones of its requests


@dataclass
class Outcome:
    """All runs of one command."""

    label: str
    provenance: dict[str, Any]
    settings: dict[str, Any]  # load, promise, workload and fleet
    runs: list[RunFigures] = field(default_factory=list)

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(run.contender for run in self.runs))

    def series(self, contender: str, name: str) -> list[float]:
        """A figure of each repeat that has it."""
        summaries = [run.summary for run in self.runs if run.contender == contender]
        return [summary[name] for summary in summaries if name in summary]

    def means(self, contender: str) -> dict[str, Interval]:
        """Of every figure that is one number, over the repeats."""
        every = {
            name: value
            for run in self.runs
            if run.contender == contender
            for name, value in run.summary.items()
        }
        numbers = [name for name, value in every.items() if isinstance(value, int | float)]
        return {name: interval(self.series(contender, name)) for name in numbers}

    def errors(self) -> Iterator[tuple[str, str]]:
        """(contender, message), each once."""
        yield from dict.fromkeys((run.contender, error) for run in self.runs for error in run.errors)

    def as_json(self) -> dict[str, Any]:
        return {
            "figure": "bench-serve",
            "title": TITLE,
            "label": self.label,
            "provenance": self.provenance,
            **self.settings,
            "runs": [asdict(run) for run in self.runs],
            "means": {
                contender: {name: found._asdict() for name, found in self.means(contender).items()}
                for contender in self.contenders
            },
        }


def figures(
    contender: str, repeat: int, result: RunResult, summary: dict[str, Any], items: Sequence[Item]
) -> RunFigures:
    """A run's summary with its share of right answers, where answers can be checked."""
    right = _right_answers(result, items)
    known: dict[str, float] = {"checked_answers": len(right)}
    if right:
        known["right_answers"] = round(sum(right) / len(right), 4)
    errors = list(dict.fromkeys(record.error for record in result.requests if record.error))
    return RunFigures(contender, repeat, summary | known, errors)


def _right_answers(result: RunResult, items: Sequence[Item]) -> list[bool]:
    by_id = {item.id: item for item in items if item.answer and item.task in CHECKS}
    checked = [(record.text, by_id[record.item]) for record in measured(result) if record.item in by_id]
    return [CHECKS[item.task](text, item.answer) for text, item in checked]


def settings(load: Load, slo: Slo, workload: dict[str, Any], fleet: Fleet | None) -> dict[str, Any]:
    """As JSON takes them: a limit that is not set is null."""
    return {
        "load": asdict(load),
        "slo": {name: value if math.isfinite(value) else None for name, value in asdict(slo).items()},
        "workload": workload,
        "fleet": asdict(fleet) if fleet else None,
        "profiles": profiles(fleet) if fleet else [],
    }


def profiles(fleet: Fleet) -> list[str]:
    """Ids of all profiles that a fleet names."""
    server = fleet.server
    names = [server.accelerator, server.target if server.accelerator else ""]
    for group in fleet.groups:
        names += [group.device, group.link]
    return sorted({name for name in names if name})
