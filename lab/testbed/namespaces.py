"""Machines of their own on one host: network namespaces, which need root and `ip` (iproute2), and shares of its CPU and
memory for one process, by a control group where that is possible.

Control groups come in two versions, with other file names. Where neither can be written, the process is bound to one
core and its address space is limited, which is coarser: `limited` says which of the two it was.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from opensled.core.errors import OpenSledError, UsageError

FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


def require() -> None:
    """Raise UsageError, with what to do, where namespaces cannot be made."""
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root; run this as root, or use docker-compose.yml")
    if not shutil.which("ip"):
        raise UsageError("there is no `ip` here (Debian: apt-get install iproute2)")


def ip(*arguments: str) -> str:
    """What `ip` prints; raises OpenSledError with its complaint."""
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise OpenSledError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with its loopback up; gone at the end, with all its interfaces."""
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "delete", name)


def cable(one: str, one_end: str, one_address: str, other: str, other_end: str, other_address: str) -> None:
    """A veth pair between two namespaces: names of its ends, and their addresses such as 10.77.1.1/30."""
    ip("link", "add", one_end, "netns", one, "type", "veth", "peer", "name", other_end, "netns", other)
    for name, end, address in ((one, one_end, one_address), (other, other_end, other_address)):
        ip("-n", name, "address", "add", address, "dev", end)
        ip("-n", name, "link", "set", end, "up")


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in the namespace, and so are the sockets and processes that it makes."""
    with ExitStack() as stack:
        here = stack.enter_context(Path("/proc/thread-self/ns/net").open())
        there = stack.enter_context((FOLDER / name).open())
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(descriptor: int) -> None:
    """os.setns, which Python has from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # the quota counts anew after each
_GIB = 2**30


@dataclass(frozen=True)
class MachineShare:
    """What a device may use of this machine."""

    cpus: float  # cores' worth of time; a fraction is fine
    memory_gib: float


@contextmanager
def limited(name: str, limits: MachineShare, root: Path = CGROUPS) -> Iterator[Confined]:
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
