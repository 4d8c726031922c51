"""`opensled generate` where text meets the process: bytes that are no text, and a terminal that is not UTF-8."""

import io
import subprocess
import sys

import pytest

from edge_client import command
from edge_client.config import GenerateConfig
from opensled_testbed.processes import Process
from tests.fake_backend import WORDS, FakeBackend


@pytest.fixture(scope="module")
def server():
    arguments = ["serve", "--engine", "tests.fake_target:load", "--model", "fake", "--listen", "127.0.0.1:0"]
    with Process(arguments) as process:
        yield process.wait_ready()


def generate(server, *arguments, text=b""):
    asked = [
        sys.executable,
        "-m",
        "opensled",
        "generate",
        "--server",
        server,
        "--drafter",
        "none",
        *arguments,
    ]
    return subprocess.run(asked, input=text, capture_output=True, timeout=60)


@pytest.mark.parametrize("prompt", [b"caf\xe9", "-"])
def test_bytes_that_are_no_text_are_not_sent(server, prompt):
    done = generate(server, "--prompt", prompt, text=b"caf\xe9")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"character 4 of the prompt is not valid UTF-8" in done.stderr and done.stderr.count(b"\n") == 1


def test_an_error_before_the_answer_leaves_standard_output_empty(server):
    done = generate(server, "--prompt", "x" * 500)
    assert (done.returncode, done.stdout) == (1, b"") and b"context" in done.stderr


class Terminal(io.TextIOWrapper):
    """A standard output whose locale knows ASCII only."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="ascii")


class LocalDevice(FakeBackend):
    async def close(self):
        pass


def test_an_answer_is_utf8_whatever_the_terminal_thinks(monkeypatch):
    async def connect(config):
        return LocalDevice()

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert command.generate(GenerateConfig(prompt="Hi")) == 0
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().decode() == "".join(WORDS) + "\n"
