"""A replica whose target `vllm serve` computes: the actor that has its place in the cluster, and its child process.

The child is vLLM's server in a process group of its own. Its front serves devices and gateways; the actor asks it for
heartbeats over a socket. That and all temporary files of the child are in a folder that this user alone may enter. The
pipe to its standard input tells the child when its actor has gone, however that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import IO, Any

from opensled.core.errors import EngineError
from scheduler.cluster.placement import Heartbeat
from scheduler.cluster.supervisor import HostedServer
from verify_server.access.security import Tls
from verify_server.cluster.replica import Membership, ReplicaServer, own_config
from verify_server.options.serve_config import ServeConfig
from verify_server.start.command import Served
from vllm_plugin import launch, serve, versions

PLACE = "OPENSLED_REPLICA_PLACE"  # variable of the child: its folder and its membership
CHILD = f"from {__name__} import main; main()"  # no `-m`: its front imports this module, too
SOCKET = "replica"  # in the folder
LOOK_S = 0.2  # between two looks for a child that loads; chosen
END_S = 10.0  # for a child that has drained to end; chosen: several times what vLLM takes
CAUSE = re.compile(r"(?:\berror|opensled): (?:vLLM does not start: )?(.*)|(\w*(?:Error|Exception): .*)")
EFFECT = "Engine core initialization failed"  # says no cause


class _Calls(BaseManager):
    """The methods of `HostedServer` across processes; each thread of the actor has a connection of its own."""


_Calls.register("server")


def start(config: Mapping[str, Any], replica: str, host: str, key: bytes) -> VllmReplica:
    """See `verify_server.cluster.replica.start`."""
    return VllmReplica(own_config(config, host), Membership(replica, host, key))


class VllmReplica:
    """See `scheduler.cluster.supervisor.HostedServer`; in the actor."""

    def __init__(self, config: ServeConfig, member: Membership) -> None:
        """Returns when the child serves. Raises UsageError, or EngineError with the reason why it does not."""
        versions.require()
        versions.prepare(config.threads, config.log_level)
        # The form of logs is the gateway's; what vLLM says goes to the log of this actor as it is.
        config = replace(config, log_json=False)
        _, _, _, *words = launch.command_of(config, cpu=versions.computes_on_cpu())
        self._folder = Path(tempfile.mkdtemp(prefix="opensled-"))
        place = [str(self._folder), member.replica, member.host, member.key.hex()]
        own = {PLACE: json.dumps(place), "TMPDIR": str(self._folder)}
        self._child = subprocess.Popen(
            # One server has the membership: vLLM would start one for each of its engines.
            [sys.executable, "-c", CHILD, *words, "--api-server-count=1"],
            env={**launch.environment(config, os.environ), **own},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._cause, self._at_work = "", threading.Lock()
        self._reader = threading.Thread(target=self._pass_on, args=(self._child.stderr,), daemon=True)
        self._reader.start()
        try:
            self._server = self._wait_for_server(member.key)
        except BaseException:
            self._end()
            raise

    def heartbeat(self) -> Heartbeat:
        """See `HostedServer`."""
        with self._at_work:
            try:
                return self._server.heartbeat()
            except BaseException:
                self._end()
                raise

    def drain(self) -> None:
        """See `HostedServer`; the child has ended then, and its memory is free for the next one."""
        self._server.drain()
        self._at_work.acquire()  # for good: no heartbeat finds a broken server while this process is ended, too
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        self._end()

    def _wait_for_server(self, key: bytes) -> HostedServer:
        calls = _Calls(str(self._folder / SOCKET), key)
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                calls.connect()
                server: HostedServer = calls.server()  # type: ignore[attr-defined]
                return server
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._child.wait(LOOK_S)
                self._reader.join(LOOK_S)  # another process of vLLM may have its end of the pipe still
                why = self._cause or f"it ended with status {status}; the log of this replica says why"
                raise EngineError(f"vLLM does not start: {why}")

    def _pass_on(self, lines: IO[str]) -> None:
        """Copy the child's lines to the log of the actor."""
        for line in lines:
            sys.stderr.write(line)
            if EFFECT not in line and (found := CAUSE.search(line)):
                self._cause = found[1] or found[2]

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def own_place() -> tuple[Path, Membership] | None:
    """In the child: its folder and its place in the cluster; None = this server is no replica."""
    told = os.environ.pop(PLACE, "")  # vLLM's other processes need no key
    if not told:
        return None
    folder, replica, host, key = json.loads(told)
    return Path(folder), Membership(replica, host, bytes.fromhex(key))


async def join_cluster(config: ServeConfig, tls: Tls | None, served: Served) -> None:
    """In the child: listen for devices and gateways, then for the actor."""
    here = own_place()
    assert here is not None
    folder, member = here
    server = ReplicaServer(config, member, tls, served)
    await server.open()
    _Calls.register("server", lambda: server, exposed=("heartbeat", "drain"))
    calls = _Calls(str(folder / SOCKET), member.key).get_server()
    threading.Thread(target=calls.serve_forever, name="actor", daemon=True).start()


def main() -> None:
    """The child: vLLM's server, as long as its actor lives."""
    here = own_place()
    assert here is not None
    threading.Thread(target=_end_with_actor, args=here[:1], name="end", daemon=True).start()
    serve.main(sys.argv[1:])


def _end_with_actor(folder: Path) -> None:
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # its group: vLLM's other processes as well
