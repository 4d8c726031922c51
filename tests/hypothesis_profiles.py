"""How long stateful tests run: within seconds in `make test`, always the same; long and at random in `make fuzz`.

`HYPOTHESIS_PROFILE=long` chooses the second.
"""

from __future__ import annotations

import os
from unittest import TestCase

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

LONGER = 20  # times as many examples


def bounded(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> type[TestCase]:
    """The test case of a machine: `examples` runs of `steps` rules."""
    long = os.environ.get("HYPOTHESIS_PROFILE") == "long"
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples * LONGER if long else examples,
        stateful_step_count=steps,
        derandomize=not long,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    return case
