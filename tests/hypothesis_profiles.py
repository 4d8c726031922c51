"""How long tests by Hypothesis run: within seconds in `make test`, always the same; long and at random in `make fuzz`.

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
    case = machine.TestCase
    case.settings = settings(tried(examples), stateful_step_count=steps)
    return case


def tried(examples: int) -> settings:
    """For a test of `examples` examples."""
    long = os.environ.get("HYPOTHESIS_PROFILE") == "long"
    return settings(
        max_examples=examples * LONGER if long else examples,
        derandomize=not long,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
