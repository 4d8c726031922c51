"""The first guess of what steps cost on this machine, for a server that has measured none of them."""

from pathlib import Path

from hw_profiles import catalog
from hw_profiles.detect import detect
from hw_profiles.step_cost import ROOFLINE, StepCost, TargetCost

CARD = Path("/proc/driver/nvidia")


def seed_cost() -> StepCost:
    """That of an 8B target on the machine as its profile has it, in whose shape over rows a server's own steps are
    read; a small target's on a processor for a machine without a profile. A processor beside a card tells nothing."""
    board = detect()
    told = catalog.bare(board.name if CARD.exists() else f"{board.name} {board.processor}")
    for name in catalog.names("accelerators"):
        profile = catalog.accelerator(name)
        words = map(catalog.bare, (name, *profile.also))  # long ones tell, such as epyc9655
        if name == board.profile or any(len(word) > 7 and word in told for word in words):
            return TargetCost(profile, catalog.target("dense-8b").at(8))
    return ROOFLINE
