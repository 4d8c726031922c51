"""What drafts bring a lone user by the law, who drafts them, and what devices can add to a draft beside the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hw_profiles import catalog
from hw_profiles.describe import predicted
from hw_profiles.profiles import AcceleratorProfile
from lab.testbed.baselines import SERVER_SD
from lab.testbed.config import PlanConfig
from lab.testbed.planner import ways
from lab.testbed.planner.asking import best_at, fastest
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.planning import setting_of, work_of
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

HEAD = "head"
MODES = {ALONE: "centralized", DEVICES: "sled-continuous", SERVER: SERVER_SD}
NEAR = 0.25  # of the bits of a weight, within which a published speed is one of the plan's target
TRUSTED = 0.25  # of a published speed, within which the law's is as good


def with_head(config: PlanConfig) -> PlanConfig | None:
    """The plan with the head that is published for its target, and the acceptance of that; None where there is none."""
    head = catalog.target(config.target).head
    return replace(config, server_drafter=head, acceptance=head) if head else None


def settings_of(config: PlanConfig, accelerator: str) -> dict[str, Setting]:
    """What the law is asked by way, where there is room."""
    own = setting_of(config, accelerator, work_of(config))
    settings = {way: own for way in MODES if ways.places(own, way)}
    headed = with_head(config)
    if headed:
        setting = setting_of(headed, accelerator, work_of(headed))
        settings |= {HEAD: setting} if ways.places(setting, SERVER) else {}
    return settings


def lone_rates(settings: Mapping[str, Setting]) -> dict[str, float]:
    """Tokens/s of a single user by way."""
    return {way: fastest(setting, MODES.get(way, SERVER_SD), 1)[0] for way, setting in settings.items()}


def held_with_head(settings: Mapping[str, Setting], pace: float) -> int | None:
    """Users whom the target with its head holds; None = there is none, or no room."""
    return best_at(settings[HEAD], SERVER_SD, pace).users if HEAD in settings else None


def most_by_devices(setting: Setting) -> tuple[float, int]:
    """How many times as fast as the same draft beside the target those of devices can be, and with how many tokens:
    1 + k B_draft / B_target, where both read their weights and nothing else takes time."""
    length = fastest(setting, SERVER_SD, 1)[1]
    assert setting.draft_cost is not None, "there is a draft beside the target"
    share = setting.draft_cost.weight_bytes / setting.cost.target.bytes_read(1)
    return 1 + length * share, length


def bound_words(config: PlanConfig, accelerator: str) -> str:
    """For one user: no drafts, those beside the target, those of devices, and a trained head's."""
    settings = settings_of(config, accelerator)
    rates = lone_rates(settings)
    said = [f"{rates[ALONE]:.3g} tokens/s without drafts"]
    if SERVER in rates:
        most, length = most_by_devices(settings[SERVER])
        said.append(f"{rates[SERVER]:.3g} with the {config.draft} draft beside the target")
        limit = f"at most {most:.2f} times those beside it, with {length} token{'s' * (length != 1)} a draft"
        said.append(f"{rates[DEVICES]:.3g} with that draft on the devices ({limit})")
    words = f"One user, by the law: {', '.join(said)}."
    head = catalog.target(config.target).head
    if HEAD not in rates:
        return f"{words} No trained head is known for {config.target}."
    best = max(rate for way, rate in rates.items() if way != HEAD)
    needless = "it makes both needless" if rates[HEAD] >= best else "it brings less than these"
    return f"{words} A trained head ({head}) gives {rates[HEAD]:.3g}: where one fits the very target, {needless}."


def published_words(profile: AcceleratorProfile, target: str, bits: float) -> str:
    """How far the plan's speed without drafts can be trusted: by what was published of that target there."""
    known = {
        name: speed
        for name, speed in profile.speeds.items()
        if name.split()[0] == target and abs(float(name.split()[1]) / bits - 1) <= NEAR
    }
    said = [
        f"{speed.typical:g} tokens/s at {name.split()[1]} bits, where the law says {predicted(profile, name):.3g} "
        f"({speed.source})"
        for name, speed in known.items()
    ]
    sure = [
        name
        for name, speed in known.items()
        if not speed.source.startswith("weak")
        and abs(predicted(profile, name) / speed.typical - 1) <= TRUSTED
    ]
    if not known:
        return f"Weak: no speed of {target} at about {bits:g} bits was published of {profile.id}."
    return f"{'Published' if sure else 'Weak: published'}: {'; '.join(said)}."
