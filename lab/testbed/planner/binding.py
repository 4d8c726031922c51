"""What binds a capacity: the one thing whose improvement would let the most users in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.planner.asking import users_at
from lab.testbed.planner.capacity_law import Capacity, Setting
from lab.testbed.planner.trip import mean_s

BETTER = 1.25  # factor by which each is improved in turn (chosen: crosses a bend of the roofline)


def what_binds(setting: Setting, found: Capacity, pace: float) -> str:
    """A key of _IMPROVEMENTS, "KV memory", or "no room" where the weights alone fill the memory."""
    if not sessions_beside(setting.cost, 1):
        return "no room"
    if found.kv_binds:
        return "KV memory"
    if not found.by_speed:
        return _longest_part(setting, found)
    users = {
        name: users_at(better(setting), found.mode, found.draft_length, pace)
        for name, better in _IMPROVEMENTS.items()
    }
    return max(users, key=lambda name: users[name])


def _longest_part(setting: Setting, found: Capacity) -> str:
    """What a lone user's round is made of, where not even one is fast enough."""
    cost, tokens = setting.cost, found.draft_length + 1
    overhead = cost.accelerator.step_overhead_ms.typical / 1000
    parts = {"weights": cost.verify_s(tokens, 0) - overhead, "overhead": overhead}
    parts["KV reads"] = cost.verify_s(tokens, setting.context) - cost.verify_s(tokens, 0)
    if found.mode.startswith("sled"):
        parts |= {"device": setting.draft_s(found.draft_length), "link": mean_s(setting.link)}
    return max(parts, key=lambda name: parts[name])


def _scaled(item: Any, factor: float, *names: str) -> Any:
    """A profile with some of its quantities, or numbers, `factor` times as large."""
    found = {name: getattr(item, name) for name in names}
    for name, value in found.items():
        plain = isinstance(value, int | float)
        found[name] = value * factor if plain else replace(value, typical=value.typical * factor)
    return replace(item, **found)


def _accelerator(setting: Setting, factor: float, name: str) -> Setting:
    """On another accelerator, the draft beside the target as well."""
    better, draft = _scaled(setting.cost.accelerator, factor, name), setting.draft_cost
    cost = replace(setting.cost, accelerator=better)
    return replace(setting, cost=cost, draft_cost=draft and replace(draft, accelerator=better))


def _target(setting: Setting, name: str) -> Setting:
    target = _scaled(setting.cost.target, 1 / BETTER, name)
    return replace(setting, cost=replace(setting.cost, target=target))


# What the law can be given more of; "KV memory" and "no room" are no matter of speed.
_IMPROVEMENTS: dict[str, Callable[[Setting], Setting]] = {
    "compute": lambda each: _accelerator(each, BETTER, "tflops"),
    "weights": lambda each: _target(each, "weight_bits"),
    "KV reads": lambda each: _target(each, "kv_bits"),
    "overhead": lambda each: _accelerator(each, 1 / BETTER, "step_overhead_ms"),
    "device": lambda each: replace(each, speed=_scaled(each.speed, BETTER, "decode_per_s")),
    "link": lambda each: replace(each, link=_scaled(each.link, 1 / BETTER, "rtt_p50_ms", "rtt_p99_ms")),
}
