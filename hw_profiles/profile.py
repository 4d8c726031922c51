"""What a machine costs: the numbers that a scheduling policy may use."""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.step_cost import Roofline, StepCost

ROOFLINE = Roofline()  # of a machine that is not measured


@dataclass(frozen=True)
class HardwareProfile:
    """A target on its machine, for step planning."""

    # Tokens one forward computes at most: bounds how long a step delays all sessions (chosen)
    max_step_tokens: int = 512
    cost: StepCost = ROOFLINE
