"""The JSON files of a results folder, sorted by what they are."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.testbed.planner.task_acceptance import TASKS
from lab.testbed.recordings import PAIRS
from opensled.core.errors import UsageError

# Results with a section of their own -> the command that makes them.
MADE_BY = {
    "regimes": "python -m lab.benchmarks.regimes",
    "grid": "python -m lab.benchmarks.grid",
    "map": "python -m lab.benchmarks.grid",
    "peer": "python -m lab.benchmarks peer",
}
SHORT_GRIDS = tuple(
    f"grid-{name}" for name in (*PAIRS, *TASKS)
)  # of any drafts; python -m lab.benchmarks.grid_set
OWN_FORM = ("doctor",)  # bench Figures that compare nothing, with a table of their own


@dataclass(frozen=True)
class Result:
    """One file."""

    path: Path
    content: Mapping[str, Any]

    @property
    def title(self) -> str:
        return str(self.content.get("title", self.path.stem.replace("_", " ").capitalize()))

    @property
    def label(self) -> str:
        """real, emulated, simulated or derived."""
        return str(self.content.get("label", "unknown"))

    @property
    def origin(self) -> Mapping[str, Any]:
        """Provenance: command, commit, date, machine."""
        return self.content.get("provenance", {})


@dataclass(frozen=True)
class Results:
    """What a folder holds."""

    components: tuple[Result, ...] = ()  # bench Figures: ratios of one part of the system
    others: tuple[Result, ...] = ()  # files of a form of their own
    named: Mapping[str, Result] = field(
        default_factory=dict
    )  # those of MADE_BY and SHORT_GRIDS that are there

    @property
    def missing(self) -> list[str]:
        return [name for name in MADE_BY if name not in self.named]

    @property
    def all(self) -> list[Result]:
        return [*self.named.values(), *self.components, *self.others]


def read_results(folder: Path) -> Results:
    """Files that are neither named nor say where they come from are no results of ours and are passed over."""
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    by_name = {result.path.stem: result for result in found}
    named = {name: by_name[name] for name in (*MADE_BY, *SHORT_GRIDS) if name in by_name}
    rest = [result for name, result in by_name.items() if name not in named]
    components = tuple(
        result for result in rest if "ratios" in result.content and result.path.stem not in OWN_FORM
    )
    others = tuple(result for result in rest if result not in components and result.origin)
    return Results(components, others, named)


def _read(path: Path) -> Result:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}; make it again or remove it") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no result; remove it")
    return Result(path, content)
