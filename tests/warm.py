"""Servers and relays that start without importing torch anew, five seconds each: forked from a process that has.

They are processes of their own all the same, and run what `python -m opensled` runs. `python -m tests.warm FD` is the
process they are forked from; it has one thread, has computed nothing yet, and ends with the test process.
"""

from __future__ import annotations

import atexit
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

# What servers and relays import, none of which starts a thread or reads one of our variables.
HEAVY = (
    "verify_server.engine.torch.torch_engine",
    "verify_server.engine.llamacpp.llama_engine",
    "verify_server.start.command",
    "verify_server.text.hf_text",
)
MAX_BYTES = 1 << 20  # of a request: arguments and environment


class WarmProcess:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, parent: Parent, pid: int, stdout: IO[str]) -> None:
        self._parent, self.pid, self.stdout = parent, pid, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask(("poll", self.pid))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process to fork from, on the test's side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "tests.warm", str(fd)]
            self._process = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL)
        atexit.register(self._end)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], errors: int) -> WarmProcess:
        """`python -m opensled ARGUMENTS`, with its standard output in a pipe and standard error at `errors`, a file."""
        read, write = os.pipe()
        try:
            request = ("start", (list(arguments), dict(environment), str(Path.cwd())))
            pid = self.ask(request, [write, errors])
        finally:
            os.close(write)
        return WarmProcess(self, pid, os.fdopen(read, "r", encoding="utf-8"))

    def ask(self, request: tuple[str, Any], fds: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [pickle.dumps(request)], list(fds))
            return pickle.loads(self._socket.recv(MAX_BYTES))

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def main(fd: int) -> None:
    """Answer requests until the other side closes; each child leaves this function and becomes `opensled`."""
    for module in HEAVY:
        with suppress(ModuleNotFoundError):  # an environment with vLLM has no llama.cpp
            __import__(module)
    with socket.socket(fileno=fd) as control:
        while True:
            message, fds, _, _ = socket.recv_fds(control, MAX_BYTES, 2)
            if not message:
                return
            kind, content = pickle.loads(message)
            if kind == "poll":
                answer = _exit_code(content)
            elif not (answer := os.fork()):
                break
            for each in fds:
                os.close(each)
            control.send(pickle.dumps(answer))
    _become(fds, *content)


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(fds: list[int], arguments: list[str], environment: dict[str, str], folder: str) -> None:
    for number, fd in enumerate(fds, 1):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments
    runpy.run_module("opensled", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
