"""How long tests by Hypothesis run: within seconds in `make test`, always the same; long and at random in `make fuzz`.

`HYPOTHESIS_PROFILE=long` chooses the second.
"""

import os
from unittest import TestCase

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
LONGER = 20  # times as many examples


def bounded(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> type[TestCase]:
    """The test case of a machine: `examples` runs of `steps` rules."""
    case = machine.TestCase
    case.settings = settings(tried(examples), stateful_step_count=steps)
    return case


def tried(examples: int) -> settings:
    """For a test of `examples` examples."""
    return settings(
        max_examples=examples * LONGER if LONG else examples,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


# For every test, those included that choose no settings: no example fails since the machine is slow.
settings.register_profile(
    "opensled",
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("opensled")
