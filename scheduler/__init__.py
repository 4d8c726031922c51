"""Scheduling policies: pure functions from a snapshot to a plan. No clock, torch, grpc or ray here."""

from opensled.core.errors import UsageError
from opensled.process.registry import Registry
from scheduler.plan import PolicyOptions, SchedulingPolicy

POLICIES = Registry(
    "policy",
    {
        "goodput": "scheduler.goodput.policy:Goodput",
        "fcfs": "scheduler.fcfs:Fcfs",
        "static": "scheduler.static:Static",
    },
)


def make_policy(name: str, options: PolicyOptions) -> SchedulingPolicy:
    """The policy with that name, or the one at "module:Class"; raises UsageError if it is not a policy."""
    kind = POLICIES.get(name)
    if not hasattr(kind, "of"):
        raise UsageError(f"{name} is not a scheduling policy: it has no class method of(PolicyOptions)")
    policy: SchedulingPolicy = kind.of(options)
    return policy
