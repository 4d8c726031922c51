"""What a killed gateway left: its processes end, those of gateways that live do not. Without Ray."""

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from scheduler.cluster import ray_guard
from scheduler.cluster.leftovers import end_leftovers, own_folder

# A gateway, and an agent of its Ray that outlives it: with a log in the folder, and a title in place of a command line.
GATEWAY = """
import subprocess, sys
from scheduler.cluster.leftovers import own_folder
AGENT = "import sys, time; log = open(sys.argv[1]); print('up', flush=True); time.sleep(600)"
with own_folder() as folder:
    (folder / "agent.log").touch()
    agent = subprocess.Popen([sys.executable, "-c", AGENT, folder / "agent.log"], stdout=subprocess.PIPE)
    agent.stdout.readline()
    print(folder, agent.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    ray_guard.prepare()
    import ray  # noqa: F401  it brings psutil

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def ended(process):
    """Also when nobody has taken notice of its end yet."""
    deadline = time.monotonic() + 20
    while process.is_running() and process.status() != "zombie":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def gateway():
    """Yields (process, its folder, its agent)."""
    import psutil

    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    agent = None
    try:
        folder, pid = process.stdout.readline().split()
        agent = psutil.Process(int(pid))
        yield process, Path(folder), agent
    finally:
        process.kill()
        process.communicate()
        if agent is not None and agent.is_running():
            agent.kill()


def test_what_a_killed_gateway_left_ends_by_name(caplog):
    with gateway() as (killed, left, orphan), gateway() as (_, held, agent):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert orphan.is_running() and left.is_dir()
        [title] = end_leftovers()
        assert (
            str(orphan.pid) in title
            and f"ended what a killed gateway had left of its Ray: {title}" in caplog.text
        )
        assert ended(orphan) and not left.exists()
        assert agent.is_running() and held.is_dir()
        assert end_leftovers() == []


def test_folders_of_others_stay(tmp_path):
    (tmp_path / "opensled-of-somebody").mkdir()
    with own_folder() as own:
        assert end_leftovers() == []
        assert own.is_dir() and (tmp_path / "opensled-of-somebody").is_dir()
    assert not own.exists()
