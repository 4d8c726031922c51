"""First figures: what a round, a draft token, a ragged step and a process cost, measured against the bare alternative.

    python -m opensled_testbed.bench [NAME ...] [--quick]

Each figure is one file with `measure(quick) -> Figure`. Contenders run interleaved in one run, every repeat is kept.
"""

from opensled.registry import Registry

FIGURES = Registry(
    "figure",
    {
        "rounds": "opensled_testbed.bench.rounds:measure",
        "edge_loop": "opensled_testbed.bench.edge_loop:measure",
        "ragged": "opensled_testbed.bench.ragged:measure",
        "memory": "opensled_testbed.bench.memory:measure",
        "link_overhead": "opensled_testbed.bench.link_overhead:measure",
        "emulation": "opensled_testbed.bench.emulation:measure",
        "simulation": "opensled_testbed.bench.simulation:measure",
        "planner": "opensled_testbed.bench.planner:measure",
        "llamacpp_flips": "opensled_testbed.bench.llamacpp_flips:measure",
        "overload": "opensled_testbed.bench.overload:measure",
        "garbage": "opensled_testbed.bench.garbage:measure",
        "peer": "opensled_testbed.bench.peer:measure",
        "failover": "opensled_testbed.bench.failover:measure",
        "cacheback": "opensled_testbed.bench.cacheback:measure",
    },
)
