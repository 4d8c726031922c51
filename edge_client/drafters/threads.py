"""How many threads a draft model may use without hurting the device.

One thread too many is far worse than one too few: on a busy 2-core machine a second llama.cpp thread made a
token 5 to 70 times slower, because every thread waits for the one that was descheduled.
"""

from __future__ import annotations

import os
from pathlib import Path


def draft_threads(wanted: int) -> int:
    """`wanted` if positive, else one less than the physical cores this process may use, at least 1."""
    return wanted if wanted > 0 else max(1, usable_cores() - 1)


def usable_cores() -> int:
    """Physical cores within the process's affinity, and within a container's CPU limit."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _container_limit()))


def _siblings(cpu: int) -> str:
    """Names the physical core of a logical CPU by its hardware threads ("0,8"); each its own if unknown."""
    text = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return text or str(cpu)


def _container_limit() -> int:
    """Whole CPUs of the cgroup v2 quota ("200000 100000" = 2); a large number without one."""
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return int(quota) // int(period) if quota.isdigit() and period.isdigit() else 1 << 16


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
