"""What a token costs in money and energy, where an accelerator is rented, or owned, for whole hours."""

from dataclasses import dataclass
from typing import NamedTuple

from hw_profiles.profiles import MESSAGE, DeviceProfile
from lab.testbed.planner.capacity_law import Capacity, Setting

HOUR_S = 3600
GB = 1e9  # bytes


class PlanPrices(NamedTuple):
    """Of an accelerator, the devices at it and their traffic."""

    usd_hour: float  # of the accelerator
    kwh_usd: float  # of the devices' power
    gb_usd: float
    device: DeviceProfile


@dataclass(frozen=True)
class Cost:
    """For a fleet as large as the capacity, all of it reading."""

    usd_per_million_tokens: float  # accelerator, traffic, and what the devices draw for drafting
    device_wh_per_1k_tokens: float  # drawn by the device while it drafts
    accelerator_wh_per_1k_tokens: float  # drawn by the accelerator at its usual power, busy all the time

    @property
    def joules_per_token(self) -> float:
        """Of accelerator and device."""
        return (self.device_wh_per_1k_tokens + self.accelerator_wh_per_1k_tokens) * HOUR_S / 1000


def cost_of(found: Capacity, setting: Setting, prices: PlanPrices, pace: float) -> Cost | None:
    """With as many users on the accelerator as it holds; None if no user is served."""
    if not found.users:
        return None
    drafting_s = _drafting_s_per_token(found, setting)
    device_wh = prices.device.busy_w.typical * drafting_s * 1000 / HOUR_S
    tokens_per_hour = found.users * pace * HOUR_S
    accelerator_wh = setting.cost.accelerator.busy_w.typical * 1000 / tokens_per_hour
    usd = prices.usd_hour / tokens_per_hour + device_wh / 1e6 * prices.kwh_usd
    usd += _messages_per_token(found) * MESSAGE / GB * prices.gb_usd
    return Cost(1e6 * usd, device_wh, accelerator_wh)


def _drafting_s_per_token(found: Capacity, setting: Setting) -> float:
    """Seconds that a device drafts for each committed token; none where the server drafts or decodes."""
    if not found.mode.startswith("sled"):
        return 0.0
    acceptance = setting.guarded if found.mode == "sled-static" else setting.acceptance
    return setting.draft_s(acceptance.drafted[found.draft_length]) / found.tokens_per_round


def _messages_per_token(found: Capacity) -> float:
    """A verdict a round, and a draft where the device sends one."""
    return (2 if found.mode.startswith("sled") else 1) / found.tokens_per_round
