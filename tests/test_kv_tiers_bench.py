"""The simulated server with KV memory, and the figures that are made with it."""

from __future__ import annotations

import pytest

from benchmarks import kv_tiers_simulated, kv_tiers_view
from benchmarks.kv_tiers_simulated import CONTEXT, held, run, target
from opensled_testbed.simulated.tiered import Memory

FIT = 4 * (CONTEXT + 512)  # tokens of KV memory


def rates(host_tokens: int, bus_gb_s: float = 55.0):
    return run(6, Memory(FIT, target().kv_bytes, host_tokens, bus_gb_s), "fcfs", 4.0)


def test_host_memory_serves_sessions_that_would_else_lose_their_kv():
    one, two = rates(0), rates(20 * CONTEXT)
    assert one["preempted"] > 0 and one["restored"] == 0
    assert two["preempted"] == 0 and two["restored"] > CONTEXT
    assert two["rate_of_the_slowest_held"] > one["rate_of_the_slowest_held"] + 0.5
    assert two["rate_of_the_slowest_held"] > 3


def test_on_a_slow_bus_nothing_moves():
    slow, one = rates(20 * CONTEXT, bus_gb_s=6.0), rates(0)
    assert slow["restored"] == 0 and slow["tokens_s"] == pytest.approx(one["tokens_s"], rel=0.25)


def test_what_is_held_ends_at_the_first_number_without_the_pace():
    rows = [
        {"sessions": count, "rate_of_the_slowest_held": rate}
        for count, rate in ((2, 5.0), (4, 1.0), (6, 3.0))
    ]
    assert [held(rows, pace) for pace in (0.5, 2.0, 9.0)] == [6, 2, 0]


def test_figures_of_one_part_alone_make_a_section():
    part = {
        **kv_tiers_simulated.measure(quick=True),
        "provenance": {"command": "x", "machine": {"load_average": [1.0]}},
    }
    lines = kv_tiers_view.section({"simulated": part})
    assert any("one tier" in line for line in lines) and not any("Real processes" in line for line in lines)
