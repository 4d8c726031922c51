"""A machine with torch, transformers and gRPC, and little else, from a checkout: what runs there runs whole, and what
cannot is refused by the name of the module that it needs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from opensled.messages import GUIDE, Failure, Guide, Open, SamplingParams
from opensled.store import model_path
from opensled_testbed.processes import Process
from tests.absent import without
from tests.serving import finish, first_reply, linked

# What the GPU machines at hand do not have (docs/install.md).
ABSENT = (
    *(
        "cryptography",
        "gguf",
        "grpc_health",
        "grpc_reflection",
        "llama_cpp",
        "llguidance",
        "ollama",
        "openai",
    ),
    *("ray", "spake2", "starlette", "uvicorn", "zeroconf"),
)
SERVE = ("serve", "--model", "tiny", "--dtype", "float64", "--listen", "127.0.0.1:0", "--threads", "1")
QUESTION = ("--prompt", "Write a short story about a rabbit.", "--temperature", "0.8", "--seed", "5")
LONG = Open((3, 1, 4), SamplingParams(temperature=0.8, seed=7, max_tokens=200))
GUIDED = Open((3, 1, 4), SamplingParams(), guide=Guide(json_schema='{"type": "boolean"}'))
# One process for many commands: torch takes seconds to start.
COMMANDS = (
    "import json, sys, opensled.cli as cli; print([cli.main(each) for each in json.loads(sys.argv[1])])"
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> dict[str, str]:
    return without(tmp_path_factory.mktemp("bare"), *ABSENT)


@pytest.fixture(scope="module")
def whole():
    """The address of a server with all packages."""
    with Process(SERVE) as server:
        yield server.wait_ready()


def run(environment, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_self_test_runs_and_what_needs_more_is_refused_by_name(bare, tmp_path):
    gguf = str(model_path("tiny") / "tiny-f16.gguf")
    commands = (
        ("selftest", "--model", "tiny", "--device", "cpu", "--short", "--out", str(tmp_path / "check.json")),
        ("serve", "--model", gguf),
        ("serve", "--model", "tiny", "--http", "127.0.0.1:0"),
    )
    done = run(bare, "-c", COMMANDS, json.dumps(commands))
    assert done.stdout.splitlines()[-1] == "[0, 1, 1]", done.stderr
    assert json.loads((tmp_path / "check.json").read_text())["equality"]["wrong"] == 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for module, error in zip(("gguf", "starlette"), errors, strict=True):
        assert error.startswith(f"error: No module named '{module}'; run: ") and "pip install" in error


def test_a_server_there_writes_what_a_server_with_all_packages_writes(whole, bare, tmp_path, cold_start):
    log = tmp_path / "log"
    with Process(SERVE, environment=bare, log=log) as server:
        asyncio.run(refuses_guides_alone(server.wait_ready(), whole))
        answers = [answer(server.address, bare, "onnx"), answer(whole, {}, "none")]
    assert server.process.returncode == 0
    assert answers[0]["token_ids"] == answers[1]["token_ids"] and answers[0]["accepted"] > 0
    notes = [line for line in log.read_text().splitlines() if line.startswith("note: ")]
    for module, note in zip(("llguidance", "grpc_health", "grpc_reflection"), notes, strict=True):
        assert f"no module {module}; run: " in note and "[server]" in note


def answer(address: str, environment: dict[str, str], drafter: str) -> dict:
    flags = ("--server", address, "--drafter", drafter, "--max-tokens", "40", "--threads", "1", "--json")
    done = run(environment, "-m", "opensled", "generate", *flags, *QUESTION)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def refuses_guides_alone(address: str, whole: str) -> None:
    async with linked(address) as link, linked(whole) as other:
        assert GUIDE not in (await link.describe()).capabilities
        assert GUIDE in (await other.describe()).capabilities
        beside = asyncio.ensure_future(finish(link, LONG))
        for _ in range(3):
            refusal = await first_reply(link, GUIDED)
            assert isinstance(refusal, Failure) and not beside.done()
            assert (refusal.code, refusal.field) == ("unsupported", "response_format")
            assert "the package llguidance" in refusal.reason
        assert (await beside)[1] == (await finish(other, LONG))[1]
