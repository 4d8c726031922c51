"""The server under attack, from any checkout: its process, its memory and its processor time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.testbed.process_guard import below, cpu_s
from lab.testbed.processes import Process, settings

VICTIM, ATTACKER = "victim-of-the-attack", "the-attacker"  # tokens; the tenants have the same names
SAMPLE_S = 0.1


@contextmanager
def served(checkout: Path, core: int, limits: str, *flags: str, **unflagged: object) -> Iterator[Process]:
    """`opensled serve` of the sources in `checkout`, on one core; the attacker's tenant has these limits. `unflagged`:
    options that have no flag."""
    with TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"{VICTIM} {VICTIM}\n{ATTACKER} {ATTACKER} {limits}\n")
        command = (
            *("serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1"),
            *("--log-level", "error", "--tokens", str(tokens), *flags),
        )
        # Without the safe path, Python would import from the working directory first.
        sources = {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1", **settings(**unflagged)}
        with Process(command, isolated=True, environment=sources) as process:
            os.sched_setaffinity(process.process.pid, {core})
            process.wait_ready()
            try:
                yield process
            finally:
                process.kill()  # what it still computes for an attacker is not waited for


class Meter:
    """The server's process and its children, looked at ten times a second.

    `beside`: processes that work for it; `kept`: the folder of the text that it keeps, if it keeps any.
    """

    def __init__(self, pid: int, beside: Sequence[int] = (), kept: Path | None = None) -> None:
        self._pid, self._beside, self._kept, self._done = pid, beside, kept, threading.Event()
        self.kept_peak = 0.0  # MiB of files
        self.memory: list[tuple[float, float]] = []  # (time.monotonic(), MiB resident)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.memory.append((time.monotonic(), self._resident()))
            self.kept_peak = max(self.kept_peak, _files(self._kept) if self._kept else 0.0)

    def _resident(self) -> float:
        return sum(_resident(pid) for pid in below(self._pid))

    def at(self, moment: float) -> float:
        """MiB resident at the last look before `moment`."""
        return [size for at, size in self.memory if at <= moment][-1]

    def peak(self, start: float, end: float) -> float:
        return max(size for at, size in self.memory if start <= at <= end)

    def cpu(self) -> float:
        """Seconds of processor time so far, of all that serves."""
        return sum(cpu_s(pid) for pid in (self._pid, *self._beside))


def _files(folder: Path) -> float:
    """MiB."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total / 2**20


def _resident(pid: int) -> float:
    """MiB."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0
