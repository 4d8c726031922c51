"""Servers are upgraded before devices: a device of an earlier commit works with the server of this one.

Needs that commit in the clone's history.
"""

import io
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import httpx
import pytest

from lab.testbed.processes import Process, free_port
from opensled.cli.child_server import clean_environment

ROOT = Path(__file__).parents[1]
EARLIER = "e46696ee5fee0087db6769b408804423827f451b"  # the one before --drain
DEVICE = ("opensled", "http_api", "edge_client", "hw_profiles", "scheduler", "models/tiny-draft")
SERVER = ("serve", "--drain", "0", "--listen")
REAL = ("--model", "tiny", "--dtype", "float64", "--threads", "1")
DRAFTS = ("--drafter", "llamacpp", "--draft-model", "tiny-draft", "--threads", "1")
STORY = {"messages": [{"role": "user", "content": "Tell me of a lamp."}], "max_tokens": 60}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The environment of a device's package of that commit."""
    archive = subprocess.run(["git", "archive", EARLIER, *DEVICE], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"this clone lacks {EARLIER[:8]}: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    environment = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    words = [
        sys.executable,
        "-c",
        "import edge_client, opensled; print(edge_client.__file__, opensled.__file__)",
    ]
    whose = subprocess.run(words, env={**clean_environment(), **environment}, capture_output=True, text=True)
    assert whose.stdout.count(str(folder)) == 2, whose
    return environment


def edge(server, environment, *flags):
    words = ["edge", "--server", server, "--http", "127.0.0.1:0", *flags]
    return Process(words, isolated=True, environment=environment)


def said(address, **fields):
    reply = httpx.post(f"http://{address}/v1/chat/completions", json={**STORY, **fields}, timeout=60)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return (
        choice["message"]["content"],
        choice["finish_reason"],
        (choice.get("logprobs") or {}).get("content"),
    )


ASKED = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0, "logprobs": True},
    {"temperature": 0, "stop": ["l"]},
]


@pytest.mark.parametrize(
    "policy", ["goodput", *[pytest.param(name, marks=pytest.mark.long) for name in ("fcfs", "static")]]
)
def test_answers_of_an_earlier_device_are_the_servers_own(earlier, policy):
    own = f"127.0.0.1:{free_port()}"
    with (
        Process([*SERVER, "127.0.0.1:0", "--http", own, "--policy", policy, *REAL], isolated=True) as server,
        edge(server.wait_ready(), earlier, *DRAFTS) as device,
    ):
        address = device.wait_ready()
        for fields in ASKED:
            assert said(address, **fields) == said(own, **fields)


def test_an_answer_of_an_earlier_device_goes_on_at_the_server_that_takes_over(earlier, tmp_path):
    """The upgrade itself: the old server hands the reader over, the next one has its address."""
    gate = tmp_path / "gate"
    gate.touch()
    listen = f"127.0.0.1:{free_port()}"
    serve = [*SERVER, listen, "--engine", "tests.gated_target:load", "--server-drafter", "none"]
    slow = {"TEST_GATE": str(gate)}
    with Process(serve, isolated=True, environment=slow) as first:
        first.wait_ready()
        with edge(listen, earlier, "--drafter", "lookup") as device:
            url = f"http://{device.wait_ready()}/v1/chat/completions"
            whole, _, _ = said(device.address, max_tokens=900, temperature=0)
            body = {**STORY, "max_tokens": 900, "temperature": 0, "stream": True}
            with httpx.stream("POST", url, json=body, timeout=120) as reply:
                lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
                text = _content(next(lines)) + _content(next(lines))
                first.process.send_signal(signal.SIGTERM)
                assert first.process.wait(20) == 0
                with Process(serve, isolated=True, environment=slow) as second:
                    second.wait_ready()
                    text += "".join(map(_content, lines))
            assert text == whole


def _content(line):
    event = json.loads(line.removeprefix("data: "))
    assert "error" not in event, event
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
