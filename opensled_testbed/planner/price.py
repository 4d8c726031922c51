"""What a capacity costs: money and energy for each token, at the pace that its users were promised."""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.profiles import DeviceProfile
from opensled_testbed.planner.capacity_law import Capacity, Setting

HOUR_S = 3600


@dataclass(frozen=True)
class Prices:
    """The user's own prices."""

    hour_usd: float  # of the accelerator
    kwh_usd: float = 0.0  # of the devices' power


@dataclass(frozen=True)
class Cost:
    """For a fleet as large as the capacity, all of it reading."""

    usd_per_million_tokens: float  # accelerator, and what the devices draw for drafting
    device_wh_per_1k_tokens: float  # drawn by the device while it drafts
    accelerator_wh_per_1k_tokens: float  # drawn by the accelerator at its usual power, busy all the time


def cost_of(
    found: Capacity, setting: Setting, device: DeviceProfile, pace: float, prices: Prices
) -> Cost | None:
    """None if no user is served."""
    if not found.users:
        return None
    drafting_s = _drafting_s_per_token(found, setting)
    device_wh = device.busy_w.typical * drafting_s * 1000 / HOUR_S
    tokens_per_hour = found.users * pace * HOUR_S
    accelerator_wh = setting.cost.accelerator.busy_w.typical * 1000 / tokens_per_hour
    usd = prices.hour_usd / tokens_per_hour + device_wh / 1e6 * prices.kwh_usd
    return Cost(1e6 * usd, device_wh, accelerator_wh)


def _drafting_s_per_token(found: Capacity, setting: Setting) -> float:
    """Seconds that a device drafts for each committed token; none where the server drafts or decodes."""
    if not found.mode.startswith("sled"):
        return 0.0
    acceptance = setting.guarded if found.mode == "sled-static" else setting.acceptance
    return setting.draft_s(acceptance.drafted[found.draft_length]) / found.tokens_per_round
