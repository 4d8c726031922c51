"""A cluster on this machine, to be broken: a Ray of its own, its replicas, and the gateway in front of them.

As an operator would start it: `ray start --head`, then `opensled serve --ray-address`. Processes are found in the tree
below Ray's, by the titles that Ray gives them; nothing else is ever touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.testbed.process_guard import below, guard, kill
from lab.testbed.processes import Process, free_port
from opensled.core.errors import OpenSledError
from scheduler.cluster import ray_guard

READY_S = 240.0  # for Ray and for replicas on a busy machine
OBJECT_STORE_BYTES = 100_000_000
REPLICA, SCHEDULER = "ray::Replica", "ray::Scheduler"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One Ray starts at a time, of all tests on this machine: of two at once each may give up after its 30 s."""
    with (Path(tempfile.gettempdir()) / "opensled-tests-ray.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class ReplicaCluster:
    """Two or more replicas of the tiny target in float64; use it in a `with`."""

    def __init__(
        self,
        replicas: int = 2,
        *,
        proxy: bool = False,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """`flags`: more of them for the gateway, and so for its replicas; `environment`: of every process here.

        `log`: file for the words of the gateway; None = our standard error.
        """
        self.replicas, self._proxy, self._flags, self._log = replicas, proxy, flags, log
        self._environment = dict(environment or {})
        ray_guard.prepare(environ=self._environment)
        self._listen = "127.0.0.1:0"
        self._folder = tempfile.TemporaryDirectory(prefix="opensled-ray-", ignore_cleanup_errors=True)

    def __enter__(self) -> ReplicaCluster:
        with alone():
            return self._start()

    def _start(self) -> ReplicaCluster:
        self._ray_address = f"127.0.0.1:{free_port()}"
        self._ray = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *self._ray_flags()],
            env={**os.environ, **self._environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        guard(self._ray.pid)
        try:
            self._await_ray()
            self.start_gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if hasattr(self, "gateway"):
            self.gateway.kill()
        for pid in below(self._ray.pid):  # all at once: nothing of it is worth a farewell
            kill(pid)
        self._ray.wait()
        self._folder.cleanup()

    @property
    def address(self) -> str:
        """The gateway's; it keeps it when it is restarted."""
        return self._listen

    def pids(self, title: str) -> list[int]:
        """Processes of this cluster whose title begins so."""
        return [pid for pid in below(self._ray.pid) if _title(pid).startswith(title)]

    def kill(self, pid: int) -> None:
        """SIGKILL to one of them."""
        kill(pid)

    def roll(self) -> None:
        """Have the gateway replace the replicas, one after another."""
        self.gateway.process.send_signal(signal.SIGHUP)

    def restart_gateway(self) -> None:
        """Kill it without warning and start another one on the same port."""
        self.gateway.kill()
        self.start_gateway()

    def start_gateway(self) -> None:
        """On the port of the one before, which has ended."""
        arguments = ["--listen", self._listen, "--model", "tiny", "--dtype", "float64", "--threads", "1"]
        arguments += ["--replicas", str(self.replicas), "--ray-address", self._ray_address]
        arguments += [*self._flags, *(["--proxy"] if self._proxy else [])]
        self.gateway = Process(
            ["serve", *arguments], isolated=True, environment=self._environment, log=self._log
        )
        self._listen = self.gateway.wait_ready(READY_S)

    def _ray_flags(self) -> list[str]:
        return [
            "--head", "--block", "--node-ip-address=127.0.0.1", "--include-dashboard=false",
            f"--port={self._ray_address.rpartition(':')[2]}", f"--num-cpus={2 * self.replicas}",
            f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={self._folder.name}",
        ]  # fmt: skip

    def _await_ray(self) -> None:
        """Until a node of it takes actors; its head answers earlier."""
        deadline = time.monotonic() + READY_S
        while not self.pids("ray::RuntimeEnvAgent"):
            if self._ray.poll() is not None or time.monotonic() > deadline:
                raise OpenSledError(f"Ray does not start; its logs are in {self._folder.name}")
            time.sleep(0.05)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
