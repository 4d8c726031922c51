"""What can be done to a process from outside: hold it, starve it of memory, or take the disk away from it. Linux."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

SPARE_BYTES = 16 << 20  # that a starved process may still take


@contextlib.contextmanager
def paused(pids: Sequence[int]) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


@contextlib.contextmanager
def without_disk(pids: Sequence[int]) -> Iterator[None]:
    """No file grows by a byte, as on a full disk; pipes and sockets go on."""
    with _limited(pids, resource.RLIMIT_FSIZE, lambda pid: 0):
        yield


@contextlib.contextmanager
def without_memory(pids: Sequence[int]) -> Iterator[None]:
    """Next to no further memory: allocations fail."""
    with _limited(pids, resource.RLIMIT_AS, lambda pid: _address_space(pid) + SPARE_BYTES):
        yield


@contextlib.contextmanager
def _limited(pids: Sequence[int], limit: int, value_of: Callable[[int], int]) -> Iterator[None]:
    before: dict[int, tuple[int, int]] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                hard = resource.prlimit(pid, limit)[1]
                before[pid] = resource.prlimit(pid, limit, (value_of(pid), hard))
        yield
    finally:
        for pid, old in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, limit, old)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _address_space(pid: int) -> int:
    """Bytes that it has mapped."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
