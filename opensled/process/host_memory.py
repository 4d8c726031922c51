"""How much memory of this machine a KV cache may take."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Free memory; half of all where the system does not tell what is free (macOS)."""
    page = os.sysconf("SC_PAGE_SIZE")
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return page * os.sysconf("SC_AVPHYS_PAGES")
    return page * os.sysconf("SC_PHYS_PAGES") // 2


def available_host_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP, own: Path = Path("/proc/self/cgroup")
) -> int:
    """What could become free without swapping: copies of files, such as of the weights, give way. Within the limits of
    the container, the service and the job. As `free_host_bytes` where the system does not tell."""
    left = [available] if (available := _field(meminfo, "MemAvailable:") << 10) else []
    for group in _groups(cgroup, own):
        limit = (_read(group / "memory.max") or _read(group / "memory.limit_in_bytes")).strip()
        used = _field(group / "memory.stat", "anon") or _field(group / "memory.stat", "total_rss")
        left += [max(1, int(limit) - used)] if limit.isdigit() else []
    return min(left, default=0) or free_host_bytes()


def _groups(cgroup: Path, own: Path) -> Iterator[Path]:
    """The control groups, of version 2 and 1, in which this process is."""
    for _, kinds, path in (line.split(":", 2) for line in _read(own).splitlines()):
        if kinds in ("", "memory"):
            folder = cgroup / kinds / path.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(cgroup / kinds))


def _field(path: Path, name: str) -> int:
    lines = [line.split() for line in _read(path).splitlines()]
    return next((int(line[1]) for line in lines if line[:1] == [name]), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
