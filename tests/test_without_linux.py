"""Server and device use nothing that Linux alone has: without /proc, /sys and affinity they run, too.

This is no macOS. It shows that our own code asks for nothing that is missing there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from hw_profiles import detect
from lab.testbed.processes import Process, settings
from tests.commands import opensled

ROOT = Path(__file__).parents[1]
PLACES = (str(ROOT / "tests/without_linux"), str(ROOT), os.environ.get("PYTHONPATH", ""))
BARE = {"PYTHONPATH": os.pathsep.join(filter(None, PLACES)), "OPENSLED_NO_CONFIG": "1"}
JSON = {
    "model": "tiny",
    "max_tokens": 60,
    "messages": [{"role": "user", "content": "Turn on the kitchen light."}],
    "response_format": {"type": "json_object"},  # a grammar, in a process with forks
}


def run(*arguments: str, code: int = 0, **variables: str) -> str:
    done = opensled(*arguments, variables={**BARE, **variables}, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_linux_is_hidden_indeed():
    program = (
        "import os, pathlib; print(hasattr(os, 'sched_getaffinity'), pathlib.Path('/proc/stat').exists())"
    )
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **BARE}, capture_output=True)
    assert done.stdout == b"False False\n"


@pytest.mark.parametrize("engine", ["llamacpp", "torch"])
def test_a_server_and_a_device_answer(engine, tmp_path):
    serve = ["serve", "--model", "tiny", "--engine", engine, "--threads", "1", "--listen", "127.0.0.1:0"]
    with Process(serve, environment=BARE) as server:
        address = server.wait_ready()
        edge = ["edge", "--server", address, "--http", "127.0.0.1:0"]
        own = settings(cache_dir=tmp_path)
        with Process(edge, environment=BARE | own) as device:
            answer = httpx.post(
                f"http://{device.wait_ready()}/v1/chat/completions", json=JSON, timeout=60
            ).json()
            assert "light.switch" in json.loads(answer["choices"][0]["message"]["content"])["tool"]
            assert device.stop() == 0
        assert ", 0 failures" in run("doctor", "--server", address, **own)
        assert server.stop() == 0


def test_a_service_is_refused_in_words():
    assert "no service is installed" in run("service", "status")


def test_a_board_is_told_as_python_knows_it(monkeypatch):
    monkeypatch.setattr(detect, "read_text", lambda path: "")
    detect.require_board("/")
    board = detect.detect()
    assert board.cores == os.cpu_count() and board.memory_gib > 0 and board.processor and board.system
    assert detect.detect("/copy/of/a/board").processor == "unknown processor"
