"""Where Ray may listen and whom it must ask: rules, and a real cluster that breaks them one by one."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from opensled.core.errors import UsageError
from scheduler.cluster.ray_guard import networks, prepare, require_private

PRIVATE = networks("10.0.0.0/24,fd00::/64")


@pytest.mark.parametrize("listed", ["8.8.8.0/24", "10.0.0.0/24,2001:4860::/32", "0.0.0.0/0"])
def test_a_public_network_is_refused(listed):
    with pytest.raises(UsageError, match="is not private"):
        networks(listed)


@pytest.mark.parametrize("listed", ["10.0.0.1/24", "eth0", "10.0.0.0/24,"])
def test_what_is_no_network_is_refused(listed):
    with pytest.raises(UsageError, match="is not a network"):
        networks(listed)


@pytest.mark.parametrize("machine", [["127.0.0.1", "10.0.0.7", "fd00::7", "fe80::1", "::1"], []])
def test_a_private_node_may_listen(machine):
    require_private("10.0.0.7", machine, PRIVATE)


@pytest.mark.parametrize("address", ["8.8.8.8", "10.0.1.7", "fd01::7", "169.254.1.1"])
def test_an_address_that_is_not_named_is_refused(address):
    with pytest.raises(UsageError, match=f"Ray listens on {re.escape(address)}"):
        require_private("10.0.0.7", ["127.0.0.1", address], PRIVATE)
    with pytest.raises(UsageError, match=f"Ray listens on {re.escape(address)}"):
        require_private(address, [], PRIVATE)


def test_on_loopback_nothing_else_is_listened_on():
    require_private("127.0.0.1", ["8.8.8.8"], ())


def test_a_ray_of_our_own_gets_a_token_of_its_own():
    first, second, given = {}, {}, {"RAY_AUTH_TOKEN": "given"}
    for environ in (first, second, given):
        prepare(environ=environ)
        assert environ["RAY_AUTH_MODE"] == "token" and environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"] and len(first["RAY_AUTH_TOKEN"]) == 64
    assert given["RAY_AUTH_TOKEN"] == "given"


def free_port() -> int:
    """`ray start` does not always say which one it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def ray_head(host: str, token: str):
    """`ray start --head`, without authentication where `token` is ""; yields its address. It ends with its group."""
    port, folder = free_port(), f"/tmp/ray-{secrets.token_hex(4)}"  # short: its sockets lie there
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if host == "127.0.0.1" else "1"
    environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    command += [f"--node-ip-address={host}", "--include-dashboard=false", f"--temp-dir={folder}"]
    command += ["--num-cpus=2", "--object-store-memory=80000000"]
    head = subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert any("Ray runtime started" in line for line in iter(head.stdout.readline, ""))
        yield f"{host}:{port}"
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait(30)
        head.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def refused(address: str, token: str, tmp_path: Path, *flags: str) -> tuple[int, str]:
    """Exit code and words of `opensled serve` at a cluster that it has to refuse."""
    command = [sys.executable, "-m", "opensled", "serve", "--ray-address", address, *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"HOME": str(tmp_path), "OPENSLED_NO_CONFIG": "1"}
    if token:
        environ["RAY_AUTH_TOKEN"] = token
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)
    return run.returncode, run.stderr


@pytest.mark.long
def test_a_cluster_that_asks_for_no_token_is_refused(tmp_path):
    with ray_head("127.0.0.1", "") as address:
        code, words = refused(address, "a" * 32, tmp_path, "--replicas", "1")
    assert code == 2 and "requires no token" in words


def own_addresses() -> list[str]:
    """Of this machine; in a process of its own, since Ray reads its environment when it is imported."""
    code = "from scheduler.cluster.ray_runtime import machine_addresses; print(*machine_addresses())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.long
def test_a_cluster_is_joined_with_its_token_and_on_networks_that_were_named(tmp_path):
    outside = [one for one in own_addresses() if not ip_address(one).is_loopback]
    host = next((one for one in outside if ip_address(one).version == 4), "")
    if not host or not all(ip_address(one).is_private for one in outside):
        pytest.skip("needs a machine with private addresses alone")
    token, named = secrets.token_hex(16), ["--ray-network", ",".join(outside)]
    with ray_head(host, token) as address:
        for wrong in ("", "b" * 32):
            code, words = refused(address, wrong, tmp_path, *named)
            assert code == 4 and "requires its token" in words
        code, words = refused(address, token, tmp_path)
        assert code == 2 and f"Ray listens on {host}, which is in no network of --ray-network" in words
        code, words = refused(address, token, tmp_path, *named)
        assert code == 2 and "has no replicas yet; add --replicas N" in words


@pytest.mark.long
def test_nobody_there(tmp_path):
    code, words = refused("127.0.0.1:9", "a" * 32, tmp_path)
    assert code == 5 and "no Ray cluster answers at 127.0.0.1:9" in words
