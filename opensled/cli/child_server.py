"""A server in a process of its own, for a command that needs one: started, awaited, and always ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque

from opensled.cli.tethered import GRACE
from opensled.core.errors import ModelError
from opensled.core.printable import visible_line
from opensled.process.logs import ready_address

NOTE = "note: "  # begins a line that a user should see (opensled/process/logs.py)
KEPT = 20  # lines of its errors
CLEAR = "\r\x1b[K"  # a terminal's line, of how long it has been loading


class ChildServer:
    """`opensled serve` with some arguments, tethered to this process; use it in a `with`.

    It reads no configuration of the user and none of the environment but OPENSLED_CACHE_DIR. Ctrl-C does not reach it.
    """

    def __init__(self, *arguments: str) -> None:
        self.address = ""  # HOST:PORT, once it is ready
        self._settled = threading.Event()  # it is ready, or has ended
        self._ending = False
        self._errors: deque[str] = deque(maxlen=KEPT)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "opensled.cli.tethered",
                "serve",
                "--listen",
                "127.0.0.1:0",
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=clean_environment("OPENSLED_CACHE_DIR"),
            start_new_session=True,
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._hear, self._listen)]
        for reader in self._readers:
            reader.start()

    def _hear(self) -> None:
        """Standard output: the ready line, and the end."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if address := ready_address(line):
                self.address = address
                self._settled.set()
        self._settled.set()

    def _listen(self) -> None:
        """Standard error: notes are shown at once, all else from when the server is ready; until then it is kept."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(visible_line(line.rstrip()))
            if self.address and not self._ending:
                print(f"server: {self._errors[-1]}", file=sys.stderr, flush=True)
            elif line.startswith(NOTE) and not self._ending:
                print(
                    f"{CLEAR if sys.stderr.isatty() else ''}{self._errors[-1]}", file=sys.stderr, flush=True
                )
        if self.address and not self._ending:
            code = self._process.wait()
            print(f"the server has ended (exit code {code}); Ctrl-D leaves", file=sys.stderr, flush=True)

    def wait_ready(self, what: str) -> str:
        """HOST:PORT; meanwhile a terminal shows for how long `what` is loading. Raises ModelError with its errors."""
        began, shown = time.monotonic(), sys.stderr.isatty()
        while not self._settled.wait(1.0):
            if shown:
                print(
                    f"\rloading {what} ... {time.monotonic() - began:.0f} s",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
        if shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)
        if not self.address:
            code = self._process.wait()
            self._readers[1].join(GRACE)
            errors = [line.removeprefix("error: ") for line in self._errors if line]
            silent = f"the server ended with exit code {code} and gave no reason"
            raise ModelError(errors[-1] if errors else silent)
        return self.address

    def stop(self) -> None:
        """The end of its standard input ends it."""
        self._ending = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ChildServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def clean_environment(*kept: str) -> dict[str, str]:
    """The environment without the user's OPENSLED_* variables, but those `kept`, and without configuration files."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("OPENSLED_") or name in kept
    }
    # Files of the current folder may be named as modules are
    return {**inherited, "OPENSLED_NO_CONFIG": "1", "PYTHONSAFEPATH": "1"}
