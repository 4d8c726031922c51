"""What servers and devices say at their start: in time, in full, and with the next command."""

import re
import time

import pytest

from lab.testbed.processes import Process
from verify_server.engine.base import EngineInfo
from verify_server.options.serve_config import ServeConfig
from verify_server.start.startup import describe_target, next_command


@pytest.mark.parametrize(
    ("options", "address", "command"),
    [
        ({}, "127.0.0.1:7411", "opensled chat"),
        ({}, "127.0.0.1:9000", "opensled chat --server 127.0.0.1:9000"),
        ({}, "[::1]:7411", "opensled chat --server [::1]:7411"),
        ({}, "192.0.2.7:7411", "opensled edge --server 192.0.2.7:7411"),
        ({}, "0.0.0.0:7411", "opensled edge --server THIS-MACHINE:7411"),
        (
            {"tls_cert": "a", "tokens": "b"},
            "0.0.0.0:1",
            "opensled edge --server THIS-MACHINE:1 --tls-ca CA.pem --token-file TOKEN",
        ),
        (
            {"tls_cert": "a", "tls_client_ca": "b"},
            "127.0.0.1:7411",
            "opensled chat --tls-ca CA.pem --client-cert CERT.pem --client-key KEY.pem",
        ),
    ],
)
def test_the_next_command_reaches_the_server(options, address, command):
    assert next_command(ServeConfig(**options), address) == command


def test_the_target_in_one_line():
    info = EngineInfo("m", 50, 4096, (0,), "exact", "float32", "cpu", 640, 16, runtime="torch")
    words = "engine torch, float32 on cpu, level exact, context 2,048 tokens, KV memory for 10,240 tokens"
    assert describe_target(info, 2048) == words


def test_a_server_and_a_device_say_what_they_do(tmp_path, cold_start):
    log = tmp_path / "log"
    with Process(
        ["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1"], log=log
    ) as server:
        address = server.wait_ready()
        lines = log.read_text().splitlines()
        assert lines[0] == "loading tiny"
        planned, loaded, tested, drafter, ready, then = [
            line for line in lines[1:] if not line.startswith("still ")
        ]
        assert re.fullmatch(
            r"memory on cpu: weights \d+ MiB, KV [\d.]+ .iB for [\d,]+ tokens, to compute in .*; .* are free",
            planned,
        )
        assert re.fullmatch(
            r"read 4 million weights in \d+\.\d s; testing how this machine computes them", loaded
        )
        assert re.fullmatch(r"tested in \d+\.\d s", tested)
        assert drafter == "drafter: auto -> lookup"
        assert ready.startswith("tiny is ready: engine torch, ") and "context 1,024 tokens" in ready
        assert then == f"next: opensled chat --server {address}"
        log.write_text("")
        with Process(["edge", "--server", address, "--http", "127.0.0.1:0"], log=log) as edge:
            http = edge.wait_ready()
            first, second, third = log.read_text().splitlines()[-3:]
            assert first == f"asking {address} for its target"
            assert (
                second
                == f"OpenAI API: http://{http}/v1 with model 'tiny'; described at http://{http}/openapi.json"
            )
            assert third == f"page for a browser: http://{http}/"


@pytest.mark.long
def test_the_first_line_comes_before_the_libraries(tmp_path, cold_start):
    """They take seconds to import."""
    log, began = tmp_path / "log", time.monotonic()
    with Process(["serve", "--model", "tiny", "--listen", "127.0.0.1:0"], log=log) as server:
        while not log.exists() or not log.read_text():
            assert time.monotonic() - began < 30
            time.sleep(0.01)
        first = time.monotonic() - began
        server.wait_ready()
        assert first < (time.monotonic() - began) / 2
