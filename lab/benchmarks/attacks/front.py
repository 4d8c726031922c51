"""The front that is shipped in deploy/front, before a server on this machine."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.benchmarks.attacks.connection import Peer
from lab.testbed.credentials import Authority
from lab.testbed.process_guard import guard
from lab.testbed.processes import free_port
from opensled.core.errors import NotFound, OpenSledError

CONFIGURATION = Path(__file__).parents[3] / "deploy/front/haproxy.cfg"
HOST = "127.0.0.1"
READY_S = 10.0
RULED_PORT = 7411  # of deploy/front/opensled.nft


def haproxy() -> str:
    """The path of the program; raises NotFound."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise NotFound("the front is HAProxy: apt-get install haproxy", "front")
    return program


def has_kernel_rules() -> bool:
    """Whether the rules of deploy/front/opensled.nft are loaded."""
    with suppress(OSError):
        listing = ["nft", "list", "table", "inet", "opensled"]
        return subprocess.run(listing, capture_output=True).returncode == 0
    return False


@contextmanager
def fronted(server: Peer, core: int) -> Iterator[tuple[Peer, int]]:
    """HAProxy before `server`, on this core; yields the way through it, over TLS, and its process. Raises NotFound."""
    program, address = haproxy(), f"{HOST}:{RULED_PORT if has_kernel_rules() else free_port()}"
    with TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            "OPENSLED_FRONT": address,
            "OPENSLED_FRONT_CERT": str(write_certificate(folder)),
            "OPENSLED_SERVER": server.address,
        }
        command = [program, "-db", "-q", "-f", str(CONFIGURATION)]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)
        guard(process.pid)
        try:
            os.sched_setaffinity(process.pid, {core})
            _wait(process, address)
            yield replace(server, address=address, tls_ca=folder / "ca.pem"), process.pid
        finally:
            process.kill()
            process.wait()


def write_certificate(folder: Path) -> Path:
    """Certificate and key in one file, as HAProxy reads them; the authority beside it."""
    authority = Authority("attacks")
    (folder / "ca.pem").write_bytes(authority.pem)
    file = folder / "front.pem"
    file.touch(0o600)
    file.write_bytes(b"".join(authority.server(HOST)))
    return file


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    """Until it listens. Raises OpenSledError."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise OpenSledError("HAProxy does not listen; its errors are above")
