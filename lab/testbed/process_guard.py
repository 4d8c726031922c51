"""Kills what a program has started once that program is gone, however it went: SIGKILL of it leaves nothing behind.

Each program that calls `guard` has one process beside it, which waits at a pipe for its end. Linux; elsewhere processes
are ended by the program alone.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

_one = threading.Lock()
_beside: subprocess.Popen[bytes] | None = None


def guard(pid: int) -> None:
    """Have this process and everything below it killed at the end of this program, if it is still there."""
    global _beside
    if sys.platform != "linux":
        return
    with _one:
        if _beside is None:
            _beside = _start()
            atexit.register(_end, _beside)
        assert _beside.stdin is not None
        _beside.stdin.write(b"%d\n" % pid)
        _beside.stdin.flush()


def _start() -> subprocess.Popen[bytes]:
    """In a session of its own: a signal to the group of this program must not reach it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(beside: subprocess.Popen[bytes]) -> None:
    assert beside.stdin is not None
    beside.stdin.close()
    beside.wait()


def below(root: int) -> list[int]:
    """Every process below `root` in the tree, and itself first."""
    parents = {int(path.name): _field(path, 1) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [root]
    for pid in found:  # grows while it is walked through
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_s(root: int) -> float:
    """Processor seconds, user's and system's, of a process and all below it (Linux counts in hundredths)."""
    ticks = sum(_field(Path(f"/proc/{pid}"), number) for pid in below(root) for number in (11, 12))
    return ticks / os.sysconf("SC_CLK_TCK")


def _field(path: Path, number: int) -> int:
    """Of /proc/PID/stat, counted after the name; 0 = the process has just ended. See proc(5)."""
    try:
        return int((path / "stat").read_text().rpartition(") ")[2].split()[number])
    except OSError:
        return 0


def _began(pid: int) -> int:
    """When it started, in ticks since the boot: another process under the same number has another time."""
    return _field(Path(f"/proc/{pid}"), 19)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """The process beside: standard input names one process a line, and ends with the program."""
    began = {pid: _began(pid) for pid in map(int, sys.stdin)}
    for root, start in began.items():
        if start and start == _began(root):
            for pid in below(root):
                kill(pid)


if __name__ == "__main__":
    main()
