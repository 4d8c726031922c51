"""What drafts bring a lone user by the law, who drafts them, and what devices can add to a draft beside the target."""

from collections.abc import Mapping
from dataclasses import replace

from hw_profiles import catalog
from hw_profiles.describe import predicted
from hw_profiles.profiles import AcceleratorProfile
from lab.testbed.baselines import SERVER_SD
from lab.testbed.config import PlanConfig
from lab.testbed.planner import ways
from lab.testbed.planner.asking import fastest
from lab.testbed.planner.capacity_law import Setting
from lab.testbed.planner.planning import setting_of, work_of
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

HEAD = "head"
MODES = {ALONE: "centralized", DEVICES: "sled-continuous", SERVER: SERVER_SD, HEAD: SERVER_SD}
NEAR = 0.25  # of the bits of a weight, and of a published speed, within which another one is as good


def settings_of(config: PlanConfig, accelerator: str) -> dict[str, Setting]:
    """What the law is asked by way, where there is room; HEAD has the head that is published for the target, and the
    acceptance of that."""
    head = catalog.target(config.target).head
    settings = dict.fromkeys((ALONE, DEVICES, SERVER), setting_of(config, accelerator, work_of(config)))
    if head:
        headed = replace(config, server_drafter=head, acceptance=head)
        settings[HEAD] = setting_of(headed, accelerator, work_of(headed))
    return {way: each for way, each in settings.items() if ways.places(each, SERVER if way == HEAD else way)}


def lone_rates(settings: Mapping[str, Setting]) -> dict[str, float]:
    """Tokens/s of a single user by way."""
    return {way: fastest(setting, MODES[way], 1)[0] for way, setting in settings.items()}


def most_by_devices(setting: Setting) -> tuple[float, int]:
    """How many times as fast as the same draft beside the target those of devices can be, and with how many tokens:
    1 + k B_draft / B_target, where both read their weights and nothing else takes time."""
    length = fastest(setting, SERVER_SD, 1)[1]
    assert setting.draft_cost is not None, "there is a draft beside the target"
    return 1 + length * setting.draft_cost.weight_bytes / setting.cost.target.bytes_read(1), length


def bound_words(config: PlanConfig, accelerator: str) -> str:
    """For one user: no drafts, those beside the target, those of devices, and a trained head's."""
    settings = settings_of(config, accelerator)
    rates, head = lone_rates(settings), catalog.target(config.target).head
    words = f"One user, by the law: {rates[ALONE]:.3g} tokens/s without drafts"
    if SERVER in rates:
        most, length = most_by_devices(settings[SERVER])
        words += (
            f", {rates[SERVER]:.3g} with the {config.draft} draft beside the target, {rates[DEVICES]:.3g} with that "
            f"draft on the devices (at most {most:.2f} times those beside it, with {length} "
            f"token{'s' * (length != 1)} a draft)"
        )
    if HEAD not in rates:
        return f"{words}. No trained head is known for {config.target}."
    said = {HEAD: "where one fits the very target, it makes both needless", ALONE: "no draft pays"}
    worth = said.get(max(rates, key=lambda way: rates[way]), "less than these")
    return f"{words}. A trained head ({head}) gives {rates[HEAD]:.3g}: {worth}."


def published_words(profile: AcceleratorProfile, target: str, bits: float) -> str:
    """How far the plan's speed without drafts can be trusted: by what was published of that target there."""
    said, sure = [], False
    for name, speed in profile.speeds.items():
        known, known_bits = name.split()
        if known == target and abs(float(known_bits) / bits - 1) <= NEAR:
            law = predicted(profile, name)
            sure |= not speed.source.startswith("weak") and abs(law / speed.typical - 1) <= NEAR
            said.append(
                f"{speed.typical:g} tokens/s at {known_bits} bits; the law says {law:.3g} ({speed.source})"
            )
    if not said:
        return f"Weak: no speed of {target} at about {bits:g} bits was published of {profile.id}."
    return f"{'Published' if sure else 'Weak: published'}: {'. '.join(said)}."
