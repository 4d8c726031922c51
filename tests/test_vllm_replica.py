"""A replica of engine vllm: the actor and its child process, which has a fake target in the place of vLLM."""

import os
import select
import signal
import subprocess
import sys

import pytest

from opensled.core.errors import EngineError
from vllm_plugin import launch, replica, versions

CONFIG = {"engine": "vllm", "listen": "127.0.0.1:0"}
CHILD = "from tests.vllm_child import main; main()"
ACTOR = f"""
import time
from vllm_plugin import launch, replica, versions
replica.CHILD, versions.require = {CHILD!r}, str
launch.command_of = lambda config, cpu: ["python", "-m", "module"]
print(replica.start({CONFIG}, "replica-0-1", "127.0.0.1", b"key")._child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts a replica whose child has these words."""
    monkeypatch.setattr(replica, "CHILD", CHILD)
    monkeypatch.setattr(versions, "require", lambda: "0.32.0")
    monkeypatch.setattr(replica.tempfile, "tempdir", str(tmp_path))

    def start(*words: str) -> replica.VllmReplica:
        monkeypatch.setattr(launch, "command_of", lambda config, cpu: ["python", "-m", "module", *words])
        return replica.start(CONFIG, "replica-0-1", "127.0.0.1", b"the cluster's key")

    return start


def test_the_child_sends_heartbeats_and_ends_after_a_drain(start, tmp_path):
    one = start()
    beat = one.heartbeat()
    assert (beat.replica, beat.model_id, beat.draining) == ("replica-0-1", "fake", False)
    assert beat.address != beat.inner
    one.drain()
    assert one._child.wait(20) == -signal.SIGTERM
    assert [*tmp_path.iterdir()] == []


def test_a_replica_whose_child_has_died_is_broken_and_leaves_nothing(start, tmp_path):
    one = start()
    one._child.kill()
    with pytest.raises((EOFError, OSError)):
        one.heartbeat()
    assert [*tmp_path.iterdir()] == []


def test_a_child_that_does_not_start_says_why(start):
    with pytest.raises(EngineError, match=r"^vLLM does not start: ValueError: no memory is left$"):
        start("--no-memory")


def test_a_child_ends_with_its_killed_actor(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", ACTOR]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as actor:
        ended = select.poll()
        ended.register(os.pidfd_open(int(actor.stdout.readline())), select.POLLIN)
        actor.kill()
    assert ended.poll(20_000), "within 20 s"
    assert [*tmp_path.iterdir()] == []
