"""What binds a capacity: the one thing whose improvement would let the most users in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hw_profiles.profiles import AcceleratorProfile, Quantity, TargetShape
from opensled_testbed.planner.capacity_law import MODES, Capacity, Setting
from opensled_testbed.planner.trip import mean_s

BETTER = 1.25  # factor by which each is improved in turn (chosen: crosses a bend of the roofline)


def what_binds(setting: Setting, found: Capacity, pace: float) -> str:
    """A key of _IMPROVEMENTS, "KV memory", or "no room" where the weights alone fill the memory."""
    if not setting.cost.kv_positions:
        return "no room"
    if found.kv_binds:
        return "KV memory"
    if not found.by_speed:
        return _longest_part(setting, found)
    mode = MODES[found.mode]
    users = {name: mode(better(setting), found.draft_length, pace) for name, better in _IMPROVEMENTS.items()}
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


def _scaled(quantity: Quantity, factor: float) -> Quantity:
    return replace(quantity, typical=quantity.typical * factor)


def _accelerator(setting: Setting, change: Callable[[AcceleratorProfile], AcceleratorProfile]) -> Setting:
    """On another accelerator, the draft beside the target as well."""
    cost, draft = setting.cost, setting.draft_cost
    moved = replace(cost, accelerator=change(cost.accelerator))
    return replace(
        setting,
        cost=moved,
        draft_cost=draft and replace(draft, accelerator=moved.accelerator),
    )


def _target(setting: Setting, change: Callable[[TargetShape], TargetShape]) -> Setting:
    return replace(setting, cost=replace(setting.cost, target=change(setting.cost.target)))


def _compute(setting: Setting) -> Setting:
    return _accelerator(setting, lambda each: replace(each, tflops=_scaled(each.tflops, BETTER)))


def _overhead(setting: Setting) -> Setting:
    return _accelerator(
        setting, lambda each: replace(each, step_overhead_ms=_scaled(each.step_overhead_ms, 1 / BETTER))
    )


def _weights(setting: Setting) -> Setting:
    return _target(setting, lambda each: replace(each, weight_bits=each.weight_bits / BETTER))


def _kv_reads(setting: Setting) -> Setting:
    return _target(setting, lambda each: replace(each, kv_bits=each.kv_bits / BETTER))


def _device(setting: Setting) -> Setting:
    speed = setting.speed
    return replace(setting, speed=replace(speed, decode_per_s=_scaled(speed.decode_per_s, BETTER)))


def _link(setting: Setting) -> Setting:
    link = setting.link
    p50, p99 = _scaled(link.rtt_p50_ms, 1 / BETTER), _scaled(link.rtt_p99_ms, 1 / BETTER)
    return replace(setting, link=replace(link, rtt_p50_ms=p50, rtt_p99_ms=p99))


# What the law can be given more of; "KV memory" and "no room" are no matter of speed.
_IMPROVEMENTS: dict[str, Callable[[Setting], Setting]] = {
    "compute": _compute,
    "weights": _weights,
    "KV reads": _kv_reads,
    "overhead": _overhead,
    "device": _device,
    "link": _link,
}
