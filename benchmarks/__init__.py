"""First figures: what a round, a draft token, a ragged step and a process cost, measured against the bare alternative.

    python -m benchmarks [NAME ...] [--quick]

Each figure is one file with `measure(quick) -> Figure`. Contenders run interleaved in one run, every repeat is kept.
"""

from opensled.registry import Registry

FIGURES = Registry(
    "figure",
    {
        "rounds": "benchmarks.rounds:measure",
        "edge_loop": "benchmarks.edge_loop:measure",
        "ragged": "benchmarks.ragged:measure",
        "memory": "benchmarks.memory:measure",
        "link_overhead": "benchmarks.link_overhead:measure",
        "emulation": "benchmarks.emulation:measure",
        "simulation": "benchmarks.simulation:measure",
        "planner": "benchmarks.planner:measure",
        "llamacpp_flips": "benchmarks.llamacpp_flips:measure",
        "overload": "benchmarks.overload:measure",
        "garbage": "benchmarks.garbage:measure",
        "peer": "benchmarks.peer:measure",
        "failover": "benchmarks.failover:measure",
        "cacheback": "benchmarks.cacheback:measure",
    },
)
