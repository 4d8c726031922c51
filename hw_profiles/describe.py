"""Profiles as plain text for a terminal, with what the law says of the speeds that were published."""

import textwrap
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any

from hw_profiles import catalog
from hw_profiles.detect import Board
from hw_profiles.profiles import (
    AcceleratorProfile,
    DeviceProfile,
    LinkProfile,
    Quantity,
    TargetShape,
    TrainedHead,
)
from hw_profiles.step_cost import TargetCost
from hw_profiles.sysfs import BoardState

# field -> what it is called, and its unit
WORDS = {
    "cores": ("cores", ""),
    "memory_gib": ("memory", "GiB"),
    "bandwidth_gb_s": ("memory bandwidth", "GB/s"),
    "idle_w": ("power, idle", "W"),
    "busy_w": ("power, busy", "W"),
    "rtt_p50_ms": ("round trip, median", "ms"),
    "rtt_p99_ms": ("round trip, p99", "ms"),
    "up_mbit_s": ("up", "Mbit/s"),
    "down_mbit_s": ("down", "Mbit/s"),
    "loss": ("packets lost", "of 1"),
    "burst": ("lost in a row", "packets"),
    "usable_memory": ("usable memory", "of 1"),
    "tflops": ("half precision", "TFLOP/s"),
    "step_overhead_ms": ("overhead of a step", "ms"),
    "hour_usd": ("price of an hour", "USD"),
    "measured": ("measured by us", ""),
    "source": ("source", ""),
    "params": ("weights", ""),
    "active_params": ("weights per token", ""),
    "layers": ("layers", ""),
    "kv_heads": ("KV heads", ""),
    "head_dim": ("size of a head", ""),
    "experts": ("experts", ""),
    "experts_per_token": ("experts per token", ""),
    "weight_bits": ("bits of a weight", ""),
    "kv_bits": ("bits of a KV entry", ""),
    "hidden_size": ("size of a hidden state", ""),
    "heads": ("query heads", ""),
    "inner_size": ("feed-forward width", ""),
    "outer_bits": ("bits beside experts", ""),
    "kv_layers": ("layers with whole KV", ""),
    "head": ("trained head", ""),
    "also": ("also called", ""),
    "share": ("read for a pass", "of the target's"),
    "bits": ("bits of a weight", ""),
    "passes": ("a pass for", "token"),
    "reach": ("drafts that stand", "to places 1, 2, ..."),
    "decode_per_s": ("decode", "tokens/s"),
    "prefill_per_s": ("prefill", "tokens/s"),
    "at": ("measured at", ""),
    "rtt_ms": ("round trip", "ms"),
    "jitter_ms": ("jitter", "ms"),
}
LABEL = max(len(label) for label, _ in WORDS.values()) + 4  # columns of the label, its indent included


def summary(profile: Any) -> str:
    """A few words for a list."""
    if isinstance(profile, DeviceProfile):
        speeds = (f"{size} {draft.decode_per_s.typical:g}" for size, draft in profile.drafts.items())
        return f"drafts, tokens/s: {', '.join(speeds)}"
    if isinstance(profile, LinkProfile):
        rates = f"{profile.up_mbit_s.typical:g} / {profile.down_mbit_s.typical:g} Mbit/s"
        return f"{profile.rtt_p50_ms.typical:g} ms, {rates}, {profile.loss.typical:.1%} lost"
    if isinstance(profile, AcceleratorProfile):
        origin = "measured" if profile.measured else "derived, not measured"
        return f"{profile.bandwidth_gb_s.typical:g} GB/s, {profile.tflops.typical:g} TFLOP/s, {origin}"
    if isinstance(profile, TrainedHead):
        of = "token" if profile.passes == "each" else "draft"
        return f"reads {profile.share.typical:.1%} of the target a {of}, {len(profile.reach)} tokens at most"
    assert isinstance(profile, TargetShape)
    return f"{_count(profile.params)} weights, {profile.kv_bytes / 1024:g} KiB of KV per position"


def facts(profile: Any, width: int) -> list[str]:
    """Every field with its range and unit, and below it its source, wrapped to `width` columns."""
    known = [
        line for each in fields(profile) for line in _fact(each.name, getattr(profile, each.name), width)
    ]
    return known + (list(_published(profile, width)) if isinstance(profile, AcceleratorProfile) else [])


def predicted(profile: AcceleratorProfile, name: str) -> float:
    """Tokens/s of one user by the law, for a name in `speeds`, such as "dense-70b 4.8"."""
    target, bits = name.split()
    return 1 / TargetCost(profile, catalog.target(target).at(float(bits))).verify_s(1, 0)


def _published(profile: AcceleratorProfile, width: int) -> Iterator[str]:
    """Speeds and curves that others published of an accelerator."""
    for name, (curve, source) in profile.rows.items():
        steps = ", ".join(f"{row:g}: {factor:.2f}" for row, factor in curve)
        yield from ("", *_wrap(f"  rows, {name} bits", steps, width), *_wrap("", source, width))
    for name, speed in profile.speeds.items():
        told = f"{speed} tokens/s; the law says {predicted(profile, name):.3g}"
        yield from ("", *_wrap(f"  {name} bits", told, width), *_wrap("", speed.source, width))


def contradictions(profile: Any) -> list[str]:
    """Values of a profile that cannot all be right, a pair in each line."""
    speeds = {
        size: (catalog.target(f"draft-{size}").at(4), draft.decode_per_s.typical)
        for size, draft in getattr(profile, "drafts", {}).items()
        if f"draft-{size}" in catalog.names("targets")
    }
    by_size = sorted(speeds.items(), key=lambda each: each[1][0].params)
    found = [
        f"a draft of {large} at {quick:g} tokens/s is faster than one of {small} at {slow:g}"
        for (small, (_, slow)), (large, (_, quick)) in pairwise(by_size)
        if quick > slow
    ]
    found += [
        f"a draft of {size} at {speed:g} tokens/s reads {needed:.1f} GB/s, and the memory gives {most:g}"
        for size, (shape, speed) in by_size
        if (needed := shape.weight_bytes * speed / 1e9) > (most := profile.bandwidth_gb_s.max)
    ]
    for low, high in (("idle_w", "busy_w"), ("rtt_p50_ms", "rtt_p99_ms")):
        less, more = getattr(profile, low, None), getattr(profile, high, None)
        if less and more and less.typical > more.typical:
            found.append(f"{WORDS[low][0]} of {less.typical:g} is above {WORDS[high][0]} of {more.typical:g}")
    return [f"contradiction in {profile.id}: {line}" for line in found]


def _fact(name: str, value: Any, width: int) -> Iterator[str]:
    if name == "servers":
        for key, entry in value.items():
            yield from ("", f"  {key}")
            yield from _entry(entry, width)
    elif name == "drafts":
        for draft in value.values():
            yield from ("", f"  draft of {draft.size}")
            for speed in ("decode_per_s", "prefill_per_s"):
                yield from _fact(speed, getattr(draft, speed), width)
    elif name in WORDS and value not in (None, "", ()):
        label, unit = WORDS[name]
        yield from _wrap(f"  {label}", f"{_value(value)} {unit}".rstrip(), width)
        if isinstance(value, Quantity):
            yield from _wrap("", value.source, width)


def _entry(entry: Any, width: int) -> Iterator[str]:
    """What a calibration found of the link to one server."""
    for item in fields(entry):
        label, unit = WORDS[item.name]
        yield from _wrap(f"  {label}", f"{getattr(entry, item.name)} {unit}".rstrip(), width)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no: derived"
    if isinstance(value, float) and value >= 1e6:
        return _count(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _count(number: float) -> str:
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"


def _wrap(label: str, text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(20, width - LABEL), break_on_hyphens=False) or [""]
    return [f"{first:{LABEL}}{line}" for first, line in zip([label, *[""] * len(lines)], lines)]


def board_lines(board: Board, state: BoardState) -> list[str]:
    """The description of a machine; what is unknown is left out."""
    known = (
        f"{board.profile} (opensled profile show {board.profile})"
        if board.profile
        else "none of the packaged ones"
    )
    facts = {
        "board": board.name,
        "profile": known,
        "system": board.system,
        "processor": processor(board),
        "memory": f"{board.memory_gib:g} GiB",
        "power mode": board.power_mode,
        "now": now(state),
    }
    return [f"{name:12}{fact}" for name, fact in facts.items() if fact]


def processor(board: Board) -> str:
    """Such as "4 x Cortex-A76 (dotprod)"."""
    features = ", ".join(board.features) or "neither dotprod nor i8mm nor avx2"
    return f"{board.cores} x {board.processor} ({features})"


def now(state: BoardState) -> str:
    """The state of a board in one line; "" if nothing is known."""
    parts = [
        "" if state.temperature_c is None else f"{state.temperature_c:.0f} °C",
        "" if state.power_w is None else f"{state.power_w:.1f} W",
        _clock(state),
        "" if state.throttled is None else _throttling(state),
        "" if state.battery_percent is None else _battery(state),
    ]
    return ", ".join(part for part in parts if part)


def _clock(state: BoardState) -> str:
    if state.cpu_mhz is None:
        return ""
    return f"{state.cpu_mhz:.0f}" + (f" of {state.cpu_max_mhz:.0f} MHz" if state.cpu_max_mhz else " MHz")


def _throttling(state: BoardState) -> str:
    past = f"; since boot: {', '.join(state.past_reasons)}" if state.past_reasons else ""
    return (f"slowed down ({', '.join(state.reasons)})" if state.throttled else "not slowed down") + past


def _battery(state: BoardState) -> str:
    return f"battery {state.battery_percent:.0f} %" + (", discharging" if state.discharging else "")
