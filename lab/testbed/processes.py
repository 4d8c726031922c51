"""Real `opensled` processes for the demo, tests and benchmarks: started, awaited until ready, always stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lab.testbed.process_guard import guard
from opensled.cli.child_server import clean_environment
from opensled.core.errors import OpenSledError
from opensled.process.ending import ExitWatch
from opensled.process.logs import ready_address

OWN_PORTS = (20_000, 30_000)  # below those that Linux (32,768), macOS and Windows (49,152) hand out
END_S = 20.0  # for a program that a signal ends, with all that it has started; chosen
QUIET = ("--log-level", "error")  # flags of a command under a display of its own


def settings(**options: object) -> dict[str, str]:
    """Variables that set options by name: those of a server that have no flag."""
    return {f"OPENSLED_{name.upper()}": str(value) for name, value in options.items()}


def _heeding_hangups() -> list[str]:
    """What to put before a command. Under nohup SIGHUP is ignored, by all that we start too: no gateway would renew."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return ["env", "--default-signal=HUP"] if ignored else []


class Process:
    """One `opensled` command that prints a ready line; use it in a `with`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        isolated: bool = False,
        environment: Mapping[str, str] | None = None,
        module: str = "opensled",
        log: Path | None = None,
        python: str = sys.executable,
    ) -> None:
        """`isolated` from the user's OPENSLED_* variables and configuration files; `environment` comes on top.

        `module`: another program with a ready line, such as lab.testbed.link_relay. `log`: file to which its
        standard error is appended; None = where ours goes. `python`: the interpreter, with its environment.
        """
        self.arguments = [python, "-m", module, *arguments]
        self.log = log
        self.address = ""  # HOST:PORT of the ready line
        self.lines: list[str] = []  # everything it printed on standard output
        self._ready = threading.Event()
        inherited = clean_environment() if isolated else os.environ
        self.process = self._start({**inherited, **(environment or {})})
        guard(self.process.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        with self.log.open("ab") if self.log else contextlib.nullcontext() as errors:
            return subprocess.Popen(
                [*_heeding_hangups(), *self.arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
            )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if address := ready_address(line):
                self.address = address
                self._ready.set()
        self._ready.set()  # also when it ended without a ready line

    def wait_ready(self, timeout: float = 120.0) -> str:
        """HOST:PORT it listens on; raises OpenSledError when it ends first or takes longer than `timeout` s."""
        if not self._ready.wait(timeout) or not self.address:
            raise OpenSledError(f"{' '.join(self.arguments[2:])} did not become ready; its errors are above")
        return self.address

    def stop(self) -> int:
        """SIGTERM, then wait; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(40)
        except subprocess.TimeoutExpired:
            code = self.kill()
        self._reader.join(5)
        return code

    def kill(self) -> int:
        """SIGKILL: the crash of a test."""
        self.process.kill()
        return self.process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def free_port() -> int:
    """A TCP port of the loopback address that is free now, for programs that cannot choose one themselves.

    No system gives such a number to a connection or to port 0 by itself, so it stays free until it is used.
    """
    while True:
        port = random.randrange(*OWN_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def exit_on_signals() -> None:
    """SIGTERM, SIGINT and SIGHUP end this program as an exception, so that it stops its processes.

    After `END_S` it ends in any case, and its guard kills what is left. A signal that is ignored stays so (nohup).
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, _: object) -> NoReturn:
    ExitWatch().arm(END_S, 128 + number)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
