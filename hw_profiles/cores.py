"""How many physical cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


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
