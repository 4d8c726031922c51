"""The first estimate of the cost of steps, before any is measured."""

import logging

from hw_profiles import catalog
from hw_profiles.step_cost import Roofline, StepCost, TargetCost
from verify_server.target import Target

log = logging.getLogger(__name__)


def first_cost(target: Target, accelerator: str) -> StepCost:
    """The cost that the target states, else that of the profile `accelerator`; "" = a default roofline.

    Raises NotFound for a profile that does not exist.
    """
    if target.cost is not None:
        return target.cost
    if not accelerator:
        return Roofline()
    profile, shape = catalog.accelerator(accelerator), target.engine.info.shape
    if shape is None:
        log.warning("--accelerator %s has no effect: the size of this target is not known", accelerator)
        return Roofline()
    return TargetCost(profile, shape)
