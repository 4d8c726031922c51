"""First figures: what a round, a draft token, a ragged step and a process cost, measured against the bare alternative.

    python -m lab.benchmarks [NAME ...] [--quick]

Each figure is one file with `measure(quick) -> Figure`. Contenders run interleaved in one run, every repeat is kept.
"""

from opensled.process.registry import Registry

NAMES = (*("rounds", "edge_loop", "ragged", "memory", "planner"), *("overload", "failover", "cacheback"))
FIGURES = Registry("figure", {name: f"lab.benchmarks.{name}:measure" for name in NAMES})
