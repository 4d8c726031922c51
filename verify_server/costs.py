"""The first estimate of the cost of steps, before any is measured; and what the server's objective reckons with."""

import logging

from hw_profiles import catalog
from hw_profiles.profiles import AcceleratorProfile
from hw_profiles.step_cost import Roofline, StepCost, TargetCost
from opensled.errors import UsageError
from scheduler.goodput.objective import Objective, Prices
from verify_server.config import DEVICE, ServeConfig
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


def objective(config: ServeConfig) -> Objective:
    """What policy `goodput` maximises, at the prices and the power of the profiles, or the operator's own.

    Raises UsageError where it needs a price or a power that nobody has named; NotFound for an unknown profile.
    """
    if config.objective == "speed":
        return Objective()
    device = catalog.device(config.device_profile)
    server = catalog.accelerator(config.accelerator) if config.accelerator else None
    if config.objective == "energy" and server is None:
        raise UsageError(
            "--objective energy needs the power of the target's hardware: name its profile with --accelerator ID"
        )
    return Objective(
        config.objective,
        Prices(
            server_usd_hour=_usd_hour(config, server),
            busy_w=server.busy_w.typical if server else 0.0,
            idle_w=server.idle_w.typical if server and server.idle_w else 0.0,
            device_w=device.busy_w.typical,
            kwh_usd=config.kwh_usd,
            gb_usd=config.gb_usd,
        ),
    )


def tell_assumption(config: ServeConfig) -> None:
    """Log the power that is assumed of devices, if it counts and no option gives it."""
    if config.device_profile == DEVICE and (config.objective == "energy" or config.kwh_usd):
        log.warning(
            "--objective %s assumes that a device draws %g W while it drafts (%s); --device-profile names another",
            config.objective,
            catalog.device(DEVICE).busy_w.typical,
            DEVICE,
        )


def _usd_hour(config: ServeConfig, server: AcceleratorProfile | None) -> float:
    """The operator's own price, or the profile's; any will do where nothing else has a price."""
    if config.accelerator_usd_hour is not None:
        return config.accelerator_usd_hour
    if server is not None:
        return server.hour_usd.typical
    if config.kwh_usd or config.gb_usd:
        raise UsageError(
            "--kwh-usd and --gb-usd need the price of the target's hardware beside them: name its profile with "
            "--accelerator ID, or its price with --accelerator-usd-hour USD"
        )
    return 1.0
