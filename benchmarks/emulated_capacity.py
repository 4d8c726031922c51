"""How many users a cell's server holds: emulated at a few numbers of users around what the simulator says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Holds = Callable[[int], bool | None]  # None: the run was void

MOST_EMULATED = 48  # devices that one small machine can play beside the server
STEP = 0.1  # between the numbers of users that are tried, relative to the simulated capacity
TRIES = 3


def emulated_capacity(holds: Holds, simulated: int) -> dict[str, Any]:
    """`emulated`: the largest number of users tried that holds, 0 if none does; `held`: what became of each try.

    At the simulated capacity first, then in steps upwards while they hold, or downwards until one does. `emulated` is
    None, and `not_emulated` says why, where that takes more devices than can be played or a run was void.
    """
    if not simulated or _stepped(simulated, 1) > MOST_EMULATED:
        return not_emulated(f"{simulated} users")
    held: dict[int, bool] = {}
    users = simulated
    while len(held) < TRIES and users not in held:
        kept = holds(users)
        if kept is None:
            return not_emulated(f"void with {users} users: this machine was too slow")
        held[users] = kept
        if kept != held[simulated]:
            break
        users = _stepped(simulated, len(held) if kept else -len(held))
    tried = {str(users): kept for users, kept in held.items()}
    return {
        "emulated": max((users for users, kept in held.items() if kept), default=0),
        "held": tried,
        "step": STEP,
    }


def not_emulated(reason: str) -> dict[str, Any]:
    """An entry without an emulated capacity."""
    return {"emulated": None, "not_emulated": reason}


def _stepped(users: int, steps: int) -> int:
    return max(1, users + steps * max(1, round(STEP * users)))
