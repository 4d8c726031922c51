"""How many physical cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Physical cores within the process's affinity, and within a container's CPU limit."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in cpus}
    share = container_share()
    return max(1, len(cores) if share is None else min(len(cores), int(share)))


def container_share(folder: Path = CGROUP) -> float | None:
    """CPUs that the cgroup (v2, or v1) may use; None without a limit."""
    words = _read(folder / "cpu.max").split()  # microseconds of each period, such as "200000 100000"
    if not words:
        words = [_read(folder / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def _siblings(cpu: int) -> str:
    """Names the physical core of a logical CPU by its hardware threads ("0,8"); each its own if unknown."""
    text = _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    return text or str(cpu)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
