"""What a target runs on."""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.quantity import Quantity


@dataclass(frozen=True)
class AcceleratorProfile:
    """A GPU, or a hub that has one. Achieved rates, not those of the data sheet."""

    id: str
    name: str
    memory_gib: float
    usable_memory: Quantity  # share of the memory that weights and KV may take, 0 to 1
    bandwidth_gb_s: Quantity  # memory, achieved, GB/s
    tflops: Quantity  # dense half precision, achieved, TFLOP/s
    step_overhead_ms: Quantity  # of one forward pass beside its arithmetic: launches, sampling, scheduling
    hour_usd: Quantity  # price of renting, or of owning, one hour
    busy_w: Quantity
    measured: bool  # whether OpenSLED's own engine was measured on it; else the numbers are derived
