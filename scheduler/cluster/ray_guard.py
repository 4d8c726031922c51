"""What protects Ray and its replicas: its environment, and where it may listen. It imports no ray, for it runs first.

A client that reaches Ray's ports can run code on every machine of the cluster, so the ports belong to loopback or a
private network, and ask for a token. Source: docs.ray.io, "Security" and "Ray token authentication" (2.60).
"""

import ipaddress
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

from opensled.core.errors import Unauthorized, Unreachable, UsageError
from opensled.core.files import user_path
from opensled.net.address import host_port, is_local

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ALWAYS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",  # else Ray reports usage to its makers
    # Else Ray gives replicas the least of the processor: beside other programs they starved, and took minutes to start.
    "RAY_worker_niceness": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # else Ray kills replicas when another process fills the memory
}
# Ray's own way to keep to one machine. Without it the ports of a local Ray are open on every interface, and
# 127.0.0.1 is taken for another address of the machine.
_LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
CONNECT_SECONDS = 5.0  # chosen: several times a slow network's round trip
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

# Asks a cluster for a key with the token that the environment names. It runs in a process of its own: Ray reads its
# token once, and ends the process if it finds no token or no cluster.
_PROBE = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, 5)
except AuthenticationError:
    print("refused")
else:
    print("answered")
"""


def prepare(address: str = "", environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what Ray reads when it is imported; `address`: HOST:PORT of a cluster to join, "" = a new one, which gets a
    new token."""
    environ.update(_ALWAYS)
    if not address or is_local(address):
        environ.update(_LOCAL)
    if not address and not any(environ.get(name) for name in _TOKENS):
        environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def require_token(address: str) -> None:
    """Refuse to join the cluster at `address` if it needs no token, or a different one.

    Raises UsageError, Unauthorized or Unreachable.
    """
    try:
        socket.create_connection(host_port(address), CONNECT_SECONDS).close()
    except OSError as error:  # Ray itself would try forever
        raise Unreachable(
            f"no Ray cluster answers at {address}: {error}; is `ray start --head` running there?"
        ) from error
    stranger = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if _answers(address, {**os.environ, **stranger}):
        raise UsageError(
            f"the Ray cluster at {address} requires no token; start it with RAY_AUTH_MODE=token "
            "(docs/cluster.md)"
        )
    default = user_path(os.environ.get("HOME", "~")) / ".ray/auth_token"
    known = any(os.environ.get(name) for name in _TOKENS) or default.is_file()
    if not known or not _answers(address, os.environ):
        raise Unauthorized(
            f"the Ray cluster at {address} requires its token; copy the one it was started with to {default}, or name "
            "its file in RAY_AUTH_TOKEN_PATH"
        )


def _answers(address: str, environ: Mapping[str, str]) -> bool:
    """Whether the cluster answers to the token in `environ`; raises Unreachable."""
    probe = [sys.executable, "-c", _PROBE, address]
    said = subprocess.run(probe, env=environ, capture_output=True, text=True).stdout
    if "refused" not in said and "answered" not in said:
        raise Unreachable(f"the service at {address} is not a Ray cluster, or has another version")
    return "answered" in said


def networks(listed: str) -> tuple[Network, ...]:
    """The private networks in a comma-separated list; raises UsageError for anything else."""
    found = [_network(word.strip()) for word in listed.split(",")] if listed else []
    for network in found:
        if not network.is_private:
            raise UsageError(
                f"--ray-network {network} is not private: clients that reach Ray's ports can run code on the "
                "whole cluster"
            )
    return tuple(found)


def _network(word: str) -> Network:
    try:
        return ipaddress.ip_network(word)
    except ValueError:
        raise UsageError(f"{word!r} is not a network; write it like 10.0.0.0/24") from None


def require_private(node: str, machine: Iterable[str], allowed: Sequence[Network]) -> None:
    """Refuse if Ray, on the node of that address, can be reached from outside `allowed`.

    `machine`: all addresses of its machine. Ray listens on every interface of a node unless its address is loopback.
    Raises UsageError.
    """
    if _unroutable(node):
        return
    for address in (node, *machine):
        if not _unroutable(address) and not any(ipaddress.ip_address(address) in one for one in allowed):
            raise UsageError(
                f"Ray listens on {address}, which is in no network of --ray-network; name it there if it is private, "
                "else remove it from the machine, or run Ray in a container or network namespace without it"
            )


def _unroutable(address: str) -> bool:
    """Loopback, or a link-local IPv6 address."""
    return (ip := ipaddress.ip_address(address)).is_loopback or (ip.version == 6 and ip.is_link_local)
