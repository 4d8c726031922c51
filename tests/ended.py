"""Whether a process has ended, as /proc tells; it may end between any two looks."""

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from lab.testbed.process_guard import kill
from tests.loops import block_until


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody has asked about counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also where it ends after its file was opened
        return False


def require_end(pid: int, seconds: float = 30.0) -> None:
    """Wait until it has ended; fail if it runs on."""
    block_until(lambda: not is_alive(pid), seconds, f"process {pid} still runs")


ENDS_S = 30.0  # on a busy machine


def left_of(pids: Sequence[int]) -> list[int]:
    """Those that do not end before long."""
    ends = []
    for pid in pids:
        try:
            ends.append((pid, os.pidfd_open(pid)))
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + ENDS_S
    left = []
    for pid, end in ends:
        if not select.select([end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            left.append(pid)
            kill(pid)
        os.close(end)
    return left


def used_mb():
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
