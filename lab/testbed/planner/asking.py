"""The law of capacity for users who ask: the wait for an answer's first token counts, and questions take time of all.

A question of p tokens makes one step longer by e = t(n + p) - t(n), for everybody. Users who would read r0 tokens/s
without questions ask n r / a times a second, a tokens being an answer, so they have r = r0 (1 - n r e / a).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, inf

from lab.testbed.planner.acceptance import LENGTHS
from lab.testbed.planner.capacity_law import ENOUGH, FASTEST, MODES, Capacity, Setting, kv_fits, largest

MOST = 1e6  # users; more than any accelerator holds


def users_at(setting: Setting, mode: str, length: int, pace: float) -> float:
    """Users who each get `pace` tokens/s, as far as speed allows."""
    bare = replace(setting, prompt=0.0)

    def holds(users: float) -> bool:
        asking = users * pace * _question_s(setting, users) / setting.answer  # share of the time
        return asking < 1 and MODES[mode](bare, length, pace / (1 - asking)) >= users

    return largest(holds, min(MOST, MODES[mode](bare, length, pace)))


def best_at(setting: Setting, mode: str, pace: float) -> Capacity:
    """With the draft length that holds the most users; of equals the shortest."""
    fits = kv_fits(setting, mode)
    found = []
    for length in _lengths(mode):
        users, tokens = users_at(setting, mode, length, pace), setting.acceptance.tokens[length]
        found.append(Capacity(mode, length, tokens, min(floor(users + 1e-3), fits), users, fits))
    return max(found, key=lambda each: (each.users, each.by_speed if not each.kv_binds else inf))


def fastest(setting: Setting, mode: str, users: int) -> tuple[float, int]:
    """Tokens/s of a user of average luck where so many share `mode`, and the draft length that gives most."""
    usual = replace(setting.acceptance, unlucky=setting.acceptance.tokens)
    bare = replace(setting, acceptance=usual, prompt=0.0)

    def pace(length: int) -> float:
        return largest(lambda each: MODES[mode](bare, length, each) >= users * (1 - ENOUGH), FASTEST)

    reading, length = max((pace(length), -length) for length in _lengths(mode))
    asking = users * _question_s(setting, users) / setting.answer  # seconds for each token
    return reading / (1 + reading * asking), -length


def _lengths(mode: str) -> Sequence[int]:
    return (0,) if mode == "centralized" else LENGTHS[1:]


def _question_s(setting: Setting, users: float) -> float:
    """Seconds by which a question makes a step longer in which so many users decode."""
    read = users * setting.context
    longer = setting.cost.verify_s(ceil(users + setting.prompt), read)
    return longer - setting.cost.verify_s(max(1, ceil(users)), read)
