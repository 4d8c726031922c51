"""What a plan is asked about: its accelerators, their number and precision, and the law's setting of each."""

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from hw_profiles import catalog
from hw_profiles.step_cost import TargetCost
from lab.testbed.baselines import SERVER_SD
from lab.testbed.config import MODEL, PlanConfig
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.planner import setting as settings
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.token_cost import PlanPrices
from lab.testbed.planner.tradeoff import TradeOff, trade_off
from lab.testbed.planner.trip import mean_s
from opensled.core.errors import NotFound

WORTH_IT = 1.05  # a gain below this is not worth a fleet that drafts
MIN_WAIT = Server().draft_wait  # seconds; the server's default
SLACK = 1.5  # of a device's usual time: drafts that the server gives up on too early cost twice
BITS = (16.0, 4.0)  # of a weight: as published, and as most people run a model that does not fit
# Options of a plan that name profiles; the accelerator may have a number before it
PROFILES = {
    "devices": "devices",
    "link": "links",
    "target": "targets",
    "hub": "accelerators",
    "hub_model": "targets",
}
ONE = ("a", "an", "my", "the", "one")
NUMBERS = (*ONE, "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTED = re.compile(rf"(?:(\d+)\s*x|(\d{{1,3}})\s|({'|'.join(NUMBERS)})\s)\s*(\S.*)", re.IGNORECASE)


class Machines(NamedTuple):
    """So many of an accelerator, each with the whole target."""

    accelerator: str  # id of its profile
    number: int  # 0 = as many as the users need


def machines_of(typed: str) -> Machines:
    """From `rtx4090` or `2xL40S`; raises NotFound for no profile."""
    count, name = _counted(typed)
    return Machines(catalog.find("accelerators", name), count)


def _counted(typed: str) -> tuple[int, str]:
    """The number in front, such as 3, 3x, three or an, and the rest; 0 = there is none."""
    said = _COUNTED.fullmatch(typed.strip())
    if not said:
        return 0, typed
    return int(said[1] or said[2] or max(1, NUMBERS.index(said[3].lower()) + 2 - len(ONE))), said[4]


def from_words(config: PlanConfig) -> PlanConfig:
    """With what its `hardware` names: a hub, and devices with their number; raises NotFound for another thing."""
    for part in filter(None, re.split(r"\s*,\s*|\s+(?:and|\+)\s+", config.hardware.strip())):
        count, name = _counted(part)
        device = ""
        with suppress(NotFound):
            device = config.accelerator and catalog.find("devices", name)
        if device:
            config = replace(config, devices=name, users=config.users or count or 1)
        else:
            catalog.find("accelerators", name)  # raises NotFound for what is neither
            config = replace(config, accelerator=f"{count}x{name}" if count else name)
    return config


def named(config: PlanConfig) -> PlanConfig:
    """The same with ids of profiles in place of what was typed, the accelerator's left out; raises NotFound."""
    found: dict[str, Any] = {
        field: catalog.find(kind, getattr(config, field)) for field, kind in PROFILES.items()
    }
    return replace(config, **found)


def taken_as(config: PlanConfig) -> list[str]:
    """What to tell of names, as typed, that were taken for profiles of other names."""
    typed = [(kind, getattr(config, field)) for field, kind in PROFILES.items()]
    typed.append(("accelerators", _counted(config.accelerator)[1]))
    return [words for kind, name in typed if name and (words := catalog.taken_as(kind, name))]


def bits_of(config: PlanConfig, accelerator: str) -> float:
    """Bits of each weight: as asked, else the first of BITS with room for a user; the last where none has it."""
    if config.weight_bits:
        return config.weight_bits
    return next(
        (bits for bits in BITS if sessions_beside(cost_at(config, accelerator, bits), config.context)),
        BITS[-1],
    )


def cost_at(config: PlanConfig, accelerator: str, bits: float) -> TargetCost:
    """The target on that accelerator with weights of so many bits."""
    return TargetCost(catalog.accelerator(accelerator), catalog.target(config.target).at(bits))


def source_of(config: PlanConfig) -> RecordedDrafts:
    """The drafts that the plan assumes."""
    trained = config.server_drafter if config.server_drafter in catalog.names("heads") else ""
    return RecordedDrafts(acceptance=config.acceptance or trained)


def work_of(config: PlanConfig) -> settings.Work:
    """The plan's drafts with recorded questions and answers, those that are simulated as well."""
    return settings.recorded_work(source_of(config))


def fleet_of(config: PlanConfig, accelerator: str) -> Fleet:
    """One device of the plan at that accelerator."""
    server = Server(
        accelerator=accelerator,
        target=config.target,
        weight_bits=bits_of(config, accelerator),
        context=config.context,
    )
    return Fleet(server, (Group(1, config.devices, config.link, draft=config.draft),))


def beside(config: PlanConfig) -> str:
    """The baseline with what drafts beside the target."""
    return SERVER_SD if config.server_drafter == MODEL else f"{SERVER_SD}-{config.server_drafter}"


def setting_of(config: PlanConfig, accelerator: str, work: settings.Work) -> Setting:
    """What the law is asked about the plan on that accelerator."""
    return settings.of_fleet(fleet_of(config, accelerator), work, beside(config))


def prices_of(config: PlanConfig, setting: Setting) -> PlanPrices:
    """The prices that were given, and the accelerator's where its own was not."""
    return PlanPrices(
        usd_hour(config, setting), config.kwh_usd, config.gb_usd, catalog.device(config.devices)
    )


def usd_hour(config: PlanConfig, setting: Setting) -> float:
    """Of one accelerator: as given, or its profile's."""
    given = config.accelerator_usd_hour
    return setting.cost.accelerator.hour_usd.typical if given is None else given


def trade_off_of(config: PlanConfig, setting: Setting) -> TradeOff:
    """What faster reading costs there."""
    return trade_off(setting, prices_of(config, setting), config.promised)


def draft_wait(setting: Setting, length: int) -> float:
    """Seconds a server should wait for a device's draft before it decodes by itself."""
    away = setting.draft_s(length) + mean_s(setting.link)
    return max(MIN_WAIT, round(SLACK * away, 2))
