"""Where the time of a step goes: the kernels that ran on the card, by kind."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

STEPS = 5  # that are recorded
MOST = 14  # kinds that are told


def breakdown(step: Callable[[], object]) -> list[dict[str, Any]]:
    """Microseconds and calls a step of each kind of kernel, the longest first; without a GPU, of torch's operations.

    A kind is a kernel's name without what it was made for. What is missing to the time of a step is the processor's:
    the card waited for it.
    """
    device = DeviceType.CUDA if torch.cuda.is_available() else DeviceType.CPU
    step()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + torch.cuda.is_available()]
    ) as seen:
        for _ in range(STEPS):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    kinds: dict[str, tuple[float, int]] = {}
    for name, micros in _events(seen, device):
        sum_, calls = kinds.get(name, (0.0, 0))
        kinds[name] = sum_ + micros, calls + 1
    ranked = sorted(kinds.items(), key=lambda each: -each[1][0])
    found = [
        {"kernel": name, "us": micros / STEPS, "calls": calls / STEPS}
        for name, (micros, calls) in ranked[:MOST]
    ]
    rest = ranked[MOST:]
    return [
        *found,
        {
            "kernel": "all others",
            "us": sum(micros for _, (micros, _) in rest) / STEPS,
            "calls": sum(calls for _, (_, calls) in rest) / STEPS,
        },
    ]


def _events(seen: profile, device: DeviceType) -> Iterator[tuple[str, float]]:
    """The name and the microseconds of each piece of work of that device."""
    for event in seen.events() or ():
        if event.device_type == device:
            micros = event.self_cpu_time_total if device == DeviceType.CPU else event.time_range.elapsed_us()
            yield event.name.split("<")[0].removeprefix("void ")[:80], float(micros)
