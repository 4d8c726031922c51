"""Network namespaces: machines of their own as far as the network goes. Needs root and `ip` (iproute2)."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from opensled.errors import OpenSledError, UsageError

FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


def require() -> None:
    """Raise UsageError, with what to do, where namespaces cannot be made."""
    if os.geteuid() != 0:
        raise UsageError("network namespaces need root; run this as root, or use docker-compose.yml")
    if not shutil.which("ip"):
        raise UsageError("there is no `ip` here (Debian: apt-get install iproute2)")


def ip(*arguments: str) -> str:
    """What `ip` prints; raises OpenSledError with its complaint."""
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise OpenSledError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")
    return run.stdout


@contextmanager
def namespace(name: str) -> Iterator[str]:
    """A network namespace with its loopback up; gone at the end, with all its interfaces."""
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "delete", name)


def cable(one: str, one_end: str, one_address: str, other: str, other_end: str, other_address: str) -> None:
    """A veth pair between two namespaces: names of its ends, and their addresses such as 10.77.1.1/30."""
    ip("link", "add", one_end, "netns", one, "type", "veth", "peer", "name", other_end, "netns", other)
    for name, end, address in ((one, one_end, one_address), (other, other_end, other_address)):
        ip("-n", name, "address", "add", address, "dev", end)
        ip("-n", name, "link", "set", end, "up")


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in the namespace, and so are the sockets and processes that it makes."""
    with ExitStack() as stack:
        here = stack.enter_context(Path("/proc/thread-self/ns/net").open())
        there = stack.enter_context((FOLDER / name).open())
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


def _enter(descriptor: int) -> None:
    """os.setns, which Python has from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
