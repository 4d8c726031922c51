"""Emulated runs that are none: the simulator in their place."""

from dataclasses import replace


def emulated_by(run, late=0):
    """A run that claims to be emulated, with `late` of 100 steps late."""
    emulation = {"steps": 100, "late_steps": late, "work_s": 1.0, "due_s": 5.0}

    def fake(fleet, items, traces, load):
        result = run(fleet, traces, load)
        return replace(result, label="emulated", emulation=emulation)

    return fake
