"""Whether a process has ended, as /proc tells; it may end between any two looks."""

import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    """A process that has ended and that nobody has asked about counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # also where it ends after its file was opened
        return False


def require_end(pid: int, seconds: float = 30.0) -> None:
    """Wait until it has ended; fail if it runs on."""
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)
