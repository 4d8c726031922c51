"""How much memory of this machine a KV cache may take."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Free memory; half of all where the system does not tell what is free (macOS)."""
    page = os.sysconf("SC_PAGE_SIZE")
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return page * os.sysconf("SC_AVPHYS_PAGES")
    return page * os.sysconf("SC_PHYS_PAGES") // 2


def available_host_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int:
    """What could become free without swapping: copies of files, such as of the weights, give way. Within the
    container's limit. As `free_host_bytes` where the system does not tell."""
    available = _field(meminfo, "MemAvailable:") << 10
    limit, used = _read(cgroup / "memory.max").strip(), _field(cgroup / "memory.stat", "anon")
    if limit.isdigit():
        left = max(1, int(limit) - used)
        return min(available or left, left)
    return available or free_host_bytes()


def _field(path: Path, name: str) -> int:
    lines = [line.split() for line in _read(path).splitlines()]
    return next((int(line[1]) for line in lines if line[:1] == [name]), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
