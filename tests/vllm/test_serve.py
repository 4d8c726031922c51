"""Real processes `opensled edge` at servers of vLLM, and `opensled serve --engine vllm`: the texts of engine torch."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge_client.link.link import Endpoint
from home.desk.authority import DAY, Authority, new_key, private_pem
from lab.testbed.process_guard import below
from lab.testbed.processes import Process, free_port
from opensled.core.errors import OpenSledError
from opensled.models.store import model_file
from tests.vllm import eagle_head
from tests.vllm.answers import QUESTIONS, SCHEMA, STORY, TINY, WARM, Answer, by_torch, prompt_of
from tests.vllm.known_devices import write
from tests.vllm.servers import (
    READY_S,
    SERVERS,
    ask,
    assert_alike,
    device_python,
    edge,
    serve,
    some,
    survivors,
)

ROOT = Path(__file__).resolve().parents[2]
DRAFTERS = ("none", "lookup", "cacheback", "llamacpp", "chain:lookup,cacheback,llamacpp")
ARCTIC = pytest.mark.skipif(
    find_spec("arctic_inference") is None, reason="needs arctic-inference 0.1.1, built for this torch"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 1, "logprobs": True, "top_logprobs": 3},
    {"temperature": 1, "top_p": 0.9, "seed": 2},
    {"temperature": 0.8, "seed": 3, "response_format": SCHEMA_FORMAT},
    {"temperature": 0, "tools": [TOOL], "tool_choice": "required"},
    {"temperature": 0.8, "seed": 4, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0, "stop": ["."]},
    {"temperature": 0.8, "seed": 8, "stop": [" the", "!"], "logprobs": True, "top_logprobs": 1},
    {"temperature": 0.8, "seed": 6, "n": 2},
    {"temperature": 1, "top_p": 0.9, "seed": 9, "n": 3, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "response_format": SCHEMA_FORMAT},
    {"temperature": 0.8, "seed": 10, "tools": [TOOL], "tool_choice": "auto"},
    {"temperature": 0, "frequency_penalty": 1.0, "logit_bias": {"317": -100}},
    {"temperature": 1, "seed": 11, "extra_body": {"top_k": 40, "min_p": 0.02, "repetition_penalty": 1.2}},
)
LONG = {"temperature": 0.3, "max_tokens": 160, "seed": 7, "extra_body": {"ignore_eos": True}}


def at_once(
    address: str, kinds: Sequence[dict[str, Any]] = KINDS, questions: Sequence[str] = 2 * QUESTIONS
) -> list[list[dict[str, Any]]]:
    """The answers to as many requests, which come at the same time."""
    with ThreadPoolExecutor(len(kinds)) as threads:
        return list(threads.map(lambda each: ask(address, *each), zip(kinds, questions)))


def assert_equal(found: Sequence[list[dict[str, Any]]], wanted: Sequence[list[dict[str, Any]]]) -> None:
    """But for the last bits of log-probabilities."""
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert without_logprobs(one) == without_logprobs(other)
            assert_close(one.get("logprobs", []), other.get("logprobs", []))


def without_logprobs(choice: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in choice.items() if name != "logprobs"}


def assert_close(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Log-probabilities of the tokens of an answer, and of the likeliest beside them."""
    for (token, value, top), (its_token, its_value, its_top) in zip(found, wanted, strict=True):
        assert (token, [id for id, _ in top]) == (its_token, [id for id, _ in its_top])
        values = [its_value, *[each for _, each in its_top]]
        assert [value, *[each for _, each in top]] == pytest.approx(values, abs=1e-3)


@pytest.fixture(scope="session")
def wanted() -> tuple[list, list]:
    """What engine torch writes, asked without a device: answers of all kinds, and long ones."""
    address = f"127.0.0.1:{free_port()}"
    with serve("torch", "--http", address, "--server-drafter", "none") as process:
        process.wait_ready()
        return at_once(address), at_once(address, [LONG] * 4, QUESTIONS[:4])


@pytest.mark.parametrize(("server", "drafter"), some(SERVERS, DRAFTERS, together=1), indirect=["server"])
def test_texts_are_those_of_engine_torch_whoever_drafts(server, wanted, drafter):
    if "llamacpp" in drafter:  # `make install` brings it
        subprocess.run([device_python(), "-c", "import llama_cpp"], check=True)
    with edge(server.devices, drafter) as device, ThreadPoolExecutor(1) as beside:
        address = device.wait_ready()
        users = beside.submit(server.ask_all)
        assert_equal(at_once(address), wanted[0])
        assert_alike(users.result(), server.alone)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With files of two tenants, whose tokens are "one" and "two", and of one of nobody's; and with certificates."""
    place, authority, key = tmp_path_factory.mktemp("files"), Authority.new("tests", 2 * DAY), new_key()
    files = {
        "tokens": b"one alice\ntwo bob\n",
        **{name: name.encode() for name in ("one", "two", "none")},
        "ca.pem": authority.pem,
        "server.pem": authority.server(["127.0.0.1"], key),
        "server.key": private_pem(key),
    }
    for name, content in files.items():
        (place / name).write_bytes(content)
        (place / name).chmod(0o600)
    return place


@pytest.fixture(scope="module")
def own(folder: Path) -> Iterator[Process]:
    """A server of a GGUF file for tenants, over TLS, with a drafter of vLLM's."""
    tls = ("--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"))
    options = (*tls, "--tokens", str(folder / "tokens"), "--server-drafter", "vllm:ngram")
    options = (*options, "--served-model-name", "tiny")
    with serve("vllm", *options, model=str(model_file("tiny", "*.gguf"))) as process:
        process.wait_ready(READY_S)
        yield process


@pytest.mark.parametrize("token", ["one", "two"])
def test_tenants_are_served_over_tls(own, folder, wanted, token):
    options = ("--tls-ca", str(folder / "ca.pem"), "--token-file", str(folder / token))
    with edge(own.address, "lookup", *options) as device:
        assert_equal(at_once(device.wait_ready()), wanted[0])


def test_a_tenant_finds_no_kv_of_another_one(own, folder):
    """One prompt, one tenant after the other: only what a tenant has computed itself is found."""
    known = by_torch(Answer(prompt_of(STORY), WARM, 8))
    found = {}
    for name, token in {"first": "one", "other": "two", "again": "one", "other again": "two"}.items():
        endpoint = Endpoint(own.address, token=token, tls=True, tls_ca=folder / "ca.pem", timeout=READY_S)
        (written,) = write(endpoint, [known])
        written.assert_same(known)
        found[name] = written.stats.cached_tokens
    whole = (len(known.prompt) - 1) // 32 * 32
    assert whole and found == {"first": 0, "other": 0, "again": whole, "other again": whole}


def test_strangers_are_refused_and_the_end_leaves_nothing(own, folder):
    for options in (["--token-file", str(folder / "none"), "--tls-ca", str(folder / "ca.pem")], []):
        with edge(own.address, "lookup", *options) as device, pytest.raises(OpenSledError):
            device.wait_ready()
        assert device.process.returncode not in (0, None)
    processes = [psutil.Process(pid) for pid in below(own.process.pid)]
    assert len(processes) > 1
    assert own.stop() == 0
    assert survivors(processes) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--device", "cuda"), "CUDA_VISIBLE_DEVICES"),
        (("--vllm", "runner=pooling"), "leave out --opensled"),
        (("--vllm", "gpu_memory_utilisation=0.5"), "unrecognized arguments: --gpu-memory-utilisation=0.5"),
        pytest.param(("--context", "5000"), "max_model_len", marks=pytest.mark.long),
        pytest.param(("--server-drafter", "vllm:suffix"), "arctic-inference", marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(tmp_path, options, says):
    log = tmp_path / "log"
    with serve("vllm", *options, log=log) as process, pytest.raises(OpenSledError):
        process.wait_ready(READY_S)
    assert process.process.returncode not in (0, None)
    said = log.read_text()
    assert "Traceback" not in said and says in said.strip().splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("drafter", ["draft_model", "eagle3", pytest.param("suffix", marks=ARCTIC)])
def test_vllm_drafts_beside_the_devices(wanted, drafter, tmp_path):
    """Its drafts where no device has one; a device's in their place where there is one."""
    heads = {"draft_model": "tiny-draft", "eagle3": eagle_head.write(tmp_path, TINY)}
    own = ("--draft-model", heads[drafter]) if drafter in heads else ()
    options = ("--server-drafter", f"vllm:{drafter}", *own)
    with serve("vllm", *options) as server, edge(server.wait_ready(READY_S), "cacheback") as device:
        assert_equal(at_once(device.wait_ready()), wanted[0])
