"""What the steps of every packaged target cost on one accelerator, and how many sessions it holds."""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles import catalog
from hw_profiles.accelerator_profile import AcceleratorProfile
from hw_profiles.target_cost import TargetCost
from hw_profiles.target_shape import TargetShape

SESSIONS = (1, 16, 64)
DRAFT_TOKENS = (0, 4)
CONTEXTS = (1024, 8192)
WEIGHT_BITS = (16, 8, 4)


@dataclass(frozen=True)
class StepCosts:
    """One target at one context length."""

    target: str
    context: int  # KV positions of each session
    weight_bits: int  # the most that leave room for a session; 0 = none of WEIGHT_BITS does
    sessions_that_fit: int
    # By "sessions x (draft tokens + 1)", such as "16x5"; without those that do not fit
    verify_s: dict[str, float]


def step_costs(accelerator: AcceleratorProfile) -> list[StepCosts]:
    """Of every packaged target, the draft shapes left out, at each of CONTEXTS."""
    targets = [catalog.target(name) for name in catalog.names("targets") if not name.startswith("draft-")]
    targets.sort(key=lambda shape: shape.params)
    return [_costs(accelerator, shape, context) for shape in targets for context in CONTEXTS]


def _costs(accelerator: AcceleratorProfile, shape: TargetShape, context: int) -> StepCosts:
    for bits in WEIGHT_BITS:
        cost = TargetCost(accelerator, shape.at(bits))
        fit = cost.sessions_that_fit(context)
        if fit:
            return StepCosts(shape.id, context, bits, fit, _steps(cost, context, fit))
    return StepCosts(shape.id, context, 0, 0, {})


def _steps(cost: TargetCost, context: int, fit: int) -> dict[str, float]:
    return {
        f"{sessions}x{drafted + 1}": cost.verify_s(sessions * (drafted + 1), sessions * context)
        for sessions in SESSIONS
        for drafted in DRAFT_TOKENS
        if sessions <= fit
    }
