"""A device of an older version at today's server, whatever its policy: the same answers, with drafts.

It needs a clone with the history, git, and grpcio-tools.
Run: pytest -m long tests/test_old_devices.py
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from opensled_testbed.processes import Process

OLD = "e46696ee"  # before servers drained on demand and keys were read again
ROOT = Path(__file__).parents[1]
QUESTIONS = ("Turn on the kitchen light.", "def area(")
PARTS = (
    "opensled",
    "edge_client",
    "hw_profiles",
    "http_api",
    "models",
    "proto",
    "scheduler",
    "verify_server",
    "relay",
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """The sources of that version, with what its protocol makes."""
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "archive", OLD, *PARTS], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"this clone lacks commit {OLD}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    words = (
        "--proto_path=proto",
        "--python_out=.",
        "--pyi_out=.",
        "--grpc_python_out=.",
        "opensled/v1/verify.proto",
    )
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], cwd=folder, check=True)
    return folder


def answer(code: Path, server: str, question: str) -> dict:
    """Of a device whose code is there."""
    words = ("generate", "--server", server, "--drafter", "lookup", "--temperature", "0", "--json", question)
    environment = {**os.environ, "PYTHONPATH": str(code), "OPENSLED_NO_CONFIG": "1"}
    command = [sys.executable, "-m", "opensled", *words]
    done = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("policy", ["goodput", "fcfs", "static"])
def test_an_old_device_gets_the_same_answers(old, policy):
    serve = ("serve", "--model", "tiny", "--threads", "1", "--policy", policy, "--listen", "127.0.0.1:0")
    with Process(serve, isolated=True) as server:
        address = server.wait_ready()
        for question in QUESTIONS:
            before, now = answer(old, address, question), answer(ROOT, address, question)
            assert before["token_ids"] and before["token_ids"] == now["token_ids"]
            assert before["finish_reason"] == now["finish_reason"]
