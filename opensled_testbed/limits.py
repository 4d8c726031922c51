"""A share of this machine for one process: CPU time and memory, by a control group where that can be had.

Control groups come in two versions, with other file names. Where neither lets us write, the process is bound to one
core and its address space is limited, which is coarser: `limited` says which of the two it was.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # the quota counts anew after each
_GIB = 2**30


@dataclass(frozen=True)
class MachineShare:
    """What a device may use of this machine."""

    cpus: float  # cores' worth of time; a fraction is fine
    memory_gib: float


@contextmanager
def limited(name: str, limits: MachineShare, root: Path = ROOT) -> Iterator[Confined]:
    """A control group `name` for processes to be put into; gone at the end, when they are."""
    folders: list[Path] = []
    try:
        try:
            _make(folders, name, limits, root)
        except OSError as error:
            yield Confined(
                (), limits, f"no control group ({error.strerror}): one core, limited address space"
            )
        else:
            yield Confined(
                tuple(folders), limits, f"control group: {limits.cpus:g} CPUs, {limits.memory_gib:g} GiB"
            )
    finally:
        for folder in folders:
            with suppress(OSError):  # a process is still in it; the code that started it reports that
                folder.rmdir()


@dataclass(frozen=True)
class Confined:
    """Where processes are put, and in words how they are held."""

    folders: tuple[Path, ...]
    limits: MachineShare
    how: str

    def add(self, pid: int) -> None:
        """From now on the limits hold for process `pid` and all that it starts."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))
        if not self.folders:
            os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))})
            most = int(self.limits.memory_gib * _GIB)
            resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


def _make(folders: list[Path], name: str, limits: MachineShare, root: Path) -> None:
    """Fill `folders` as far as it goes; raises OSError where the kernel or a container says no."""
    quota, memory = int(limits.cpus * PERIOD_US), int(limits.memory_gib * _GIB)
    if (root / "cgroup.controllers").exists():  # version 2: one tree
        (root / "cgroup.subtree_control").write_text("+cpu +memory")
        files = {"cpu.max": f"{quota} {PERIOD_US}", "memory.max": str(memory)}
        _folder(folders, root / name, files)
        return
    _folder(
        folders, root / "cpu" / name, {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
    )
    _folder(folders, root / "memory" / name, {"memory.limit_in_bytes": str(memory)})


def _folder(folders: list[Path], folder: Path, files: dict[str, str]) -> None:
    folder.mkdir()
    folders.append(folder)
    for name, value in files.items():
        (folder / name).write_text(value)
