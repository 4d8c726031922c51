"""What a machine costs: the numbers a scheduling policy may reason with."""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.step_cost import Roofline, StepCost

ROOFLINE = Roofline()  # of a machine that nobody has measured


@dataclass(frozen=True)
class HardwareProfile:
    """A target on its machine, for step planning."""

    # Tokens one forward computes at most: bounds how long a step holds everybody up
    max_step_tokens: int = 512
    cost: StepCost = ROOFLINE
