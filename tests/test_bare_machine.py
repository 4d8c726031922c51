"""A machine with torch, transformers and gRPC, and little else, from a checkout: what runs there runs whole, and what
cannot is refused by the name of the module that it needs."""

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.testbed.processes import Process
from opensled.core.messages import GUIDE, Failure, Guide, Open, SamplingParams
from opensled.models.store import model_path
from tests.absent import without
from tests.commands import opensled
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
# They wait for every draft: whether one is accepted does not hang on the speed of the machine.
WAITS = ("--policy", "fcfs", "--draft-wait", "inf")
PLAIN = ("serve", "--model", "tiny", "--dtype", "float64", "--listen", "127.0.0.1:0", "--threads", "1")
SERVE = (*PLAIN, *WAITS)
QUESTION = ("Write a short story about a rabbit.", "--temperature", "0.8", "--seed", "5")
LONG = Open((3, 1, 4), SamplingParams(temperature=0.8, seed=7, max_tokens=200))
GUIDED = Open((3, 1, 4), SamplingParams(), guide=Guide(json_schema='{"type": "boolean"}'))


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    return without(tmp_path_factory.mktemp("bare"), *ABSENT)


@pytest.fixture(scope="module")
def bare(environment, tmp_path_factory):
    """A process there that ran the self-test, was refused two servers, and serves now; its folder has its log."""
    folder = tmp_path_factory.mktemp("ran")
    commands = (
        ("selftest", "--model", "tiny", "--device", "cpu", "--answers", "4"),
        ("serve", "--model", str(model_path("tiny") / "tiny-f16.gguf")),
        ("serve", "--model", "tiny", "--http", "127.0.0.1:0"),
        SERVE,
    )
    words = list(map(json.dumps, commands))
    with Process(words, module="tests.many_commands", environment=environment, log=folder / "log") as process:
        process.wait_ready(600)
        yield process, folder
    assert process.lines[-1] == "ended with 0"


@pytest.fixture(scope="module")
def whole():
    """The address of a server with all packages."""
    with Process(SERVE) as server:
        yield server.wait_ready()


def test_the_self_test_runs_and_what_needs_more_is_refused_by_name(bare):
    process, folder = bare
    assert [line for line in process.lines if line.startswith("ended")] == [
        f"ended with {code}" for code in (0, 1, 1)
    ]
    assert any("equality with the processor holds: 4 answers" in line for line in process.lines)
    for module, error in zip(("gguf", "starlette"), lines(folder, "error: "), strict=True):
        assert error.startswith(f"error: No module named '{module}'; run: ") and "pip install" in error


# Without llama_cpp the wheel brings llama.cpp.
DRAFTING = {"onnx": "onnxruntime", "llamacpp": "xllamacpp"}


@pytest.mark.parametrize("drafter", DRAFTING)
def test_a_server_there_writes_what_a_server_with_all_packages_writes(bare, whole, environment, drafter):
    if find_spec(DRAFTING[drafter]) is None:
        pytest.skip(f"{DRAFTING[drafter]} is not installed")
    process, _ = bare
    drafted, plain = answer(process.address, environment, drafter), answer(whole, {}, "none")
    assert drafted["token_ids"] == plain["token_ids"] and drafted["accepted"] > 0


def test_a_server_there_says_what_it_goes_without(bare):
    notes = lines(bare[1], "note: ")
    for module, note in zip(("llguidance", "grpc_health", "grpc_reflection"), notes, strict=True):
        assert f"no module {module}; run: " in note and "[server]" in note


async def test_a_guide_is_refused_there_and_no_other_sequence_notices(bare, whole):
    async with linked(bare[0].address) as link, linked(whole) as other:
        assert GUIDE not in (await link.describe()).capabilities
        assert GUIDE in (await other.describe()).capabilities
        beside = asyncio.ensure_future(finish(link, LONG))
        for _ in range(3):
            refusal = await first_reply(link, GUIDED)
            assert isinstance(refusal, Failure) and not beside.done()
            assert (refusal.code, refusal.field) == ("unsupported", "response_format")
            assert "the package llguidance" in refusal.reason
        assert (await beside)[1] == (await finish(other, LONG))[1]


def lines(folder: Path, start: str) -> list[str]:
    return [line for line in (folder / "log").read_text().splitlines() if line.startswith(start)]


def answer(address: str, environment: dict[str, str], drafter: str) -> dict:
    flags = ("--server", address, "--drafter", drafter, "--max-tokens", "40", "--threads", "1", "--json")
    done = opensled("generate", *flags, *QUESTION, variables=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
