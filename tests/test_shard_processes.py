"""A server of two shards, and a replica of two on a real Ray: the same text as one process; a lost shard ends the
server, or has its replica started again; and no process is left.

Run: pytest tests/test_shard_processes.py -m long
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from opensled.child_server import clean_environment
from opensled_testbed.processes import Process
from tests.test_shards import gone, until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("cold_start")]
TARGET = (
    "--model",
    "tiny",
    "--device",
    "cpu",
    "--dtype",
    "float64",
    "--threads",
    "1",
    "--listen",
    "127.0.0.1:0",
)
QUESTION = "How many legs do two cats have?"


def answer(address: str) -> str:
    flags = ("--server", address, "--drafter", "lookup", "--temperature", "0", "--max-tokens", "40")
    done = subprocess.run(
        [sys.executable, "-m", "opensled", "generate", QUESTION, *flags],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout


def shards_below(process: int) -> list[int]:
    """The shard workers among all processes below this one."""
    found, below = [], [process]
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    while below:
        children = [child for child, parent in parents.items() if parent == below[0]]
        below = below[1:] + children
        found += [child for child in children if "shard_worker" in _command(child)]
    return found


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def expected() -> str:
    with Process(["serve", *TARGET], isolated=True) as server:
        return answer(server.wait_ready(120))


def served(log: Path, *flags: str) -> Process:
    return Process(["serve", *TARGET, "--shards", "2", *flags], isolated=True, log=log)


def test_two_shards_answer_as_one_process_and_end_with_the_server(expected: str, tmp_path: Path) -> None:
    with served(tmp_path / "log") as server:
        assert answer(server.wait_ready(180)) == expected
        [shard] = shards_below(server.process.pid)
        assert server.stop() == 0
    assert (
        "tiny is ready: engine torch, float64 on 2 shards on cpu, level exact"
        in (tmp_path / "log").read_text()
    )
    until(lambda: gone(shard))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_shard_ends_the_server_by_name(end: int, tmp_path: Path) -> None:
    with served(tmp_path / "log") as server:
        server.wait_ready(180)
        [shard] = shards_below(server.process.pid)
        os.kill(shard, end)
        assert server.process.wait(180) == 1
        told = (tmp_path / "log").read_text()
    assert f"shard 1 of 2 (process {shard}) was ended by signal {end}" in told


def test_a_replica_of_shards_is_started_again_as_a_whole(expected: str, tmp_path: Path) -> None:
    with served(tmp_path / "log", "--replicas", "1") as gateway:
        address = gateway.wait_ready(300)
        assert answer(address) == expected
        [shard] = shards_below(gateway.process.pid)
        os.kill(shard, signal.SIGKILL)
        again, deadline = "", time.monotonic() + 180
        while not again:
            assert time.monotonic() < deadline, "the replica does not come back"
            with suppress(subprocess.CalledProcessError):  # nobody serves meanwhile
                again = answer(address)
        assert again == expected
        [renewed] = shards_below(gateway.process.pid)
        assert renewed != shard
        gateway.stop()
    until(lambda: gone(shard) and gone(renewed))
