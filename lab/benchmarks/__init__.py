"""First figures: what a round, a draft token, a plan and an overload cost, measured against the bare alternative.

    python -m lab.benchmarks [NAME ...] [--quick]

Each figure is one file with `measure(quick) -> Figure`. Contenders run interleaved in one run, every repeat is kept.
"""

import sys
from types import TracebackType

from opensled.process.registry import Registry, remedy_of

NAMES = ("rounds", "edge_loop", "planner", "overload", "hubs")
FIGURES = Registry("figure", {name: f"lab.benchmarks.{name}:measure" for name in NAMES})


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Name a package that a program lacks in one line, also where it is imported."""
    if isinstance(error, ModuleNotFoundError) and (remedy := remedy_of(error)):
        print(f"error: {error}{remedy}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _tell
