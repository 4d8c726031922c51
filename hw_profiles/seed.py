"""The first guess of what steps cost on this machine, for a server that has measured none of them."""

from hw_profiles import catalog
from hw_profiles.detect import detect
from hw_profiles.step_cost import ROOFLINE, StepCost, TargetCost


def seed_cost() -> StepCost:
    """That of an 8B target on the machine as its profile has it, in whose shape over rows a server's own steps are
    read; a small target's on a processor for a machine without a profile."""
    board = detect()
    told = catalog.bare(f"{board.name} {board.processor}")
    for name in catalog.names("accelerators"):
        profile = catalog.accelerator(name)
        words = map(catalog.bare, (name, *profile.also))  # long ones tell, such as epyc9655
        if name == board.profile or any(len(word) > 7 and word in told for word in words):
            return TargetCost(profile, catalog.target("dense-8b").at(8))
    return ROOFLINE
