"""`opensled serve --engine vllm` as users meet it: real processes and devices, and the texts of engine torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from openai import BadRequestError, OpenAI

from lab.testbed.processes import Process, free_port
from tests.vllm.answers import ARCTIC, QUESTIONS

ROOT = Path(__file__).resolve().parents[2]
# The environment of vLLM has no llama.cpp; that of the checkout has.
DEVICE = ROOT / ".venv/bin/python"
CHAIN = "chain:lookup,cacheback,llamacpp"
# Tokens of the server's drafts that stood, and of devices'
ACCEPTED = ("server_accepted_tokens_total", "spec_decode_num_accepted_tokens_total")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
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


def serve(engine: str, *more: str, listen: str = "127.0.0.1:0") -> Process:
    target = ["serve", "--engine", engine, "--model", "tiny", "--dtype", "float32"]
    return Process(
        [*target, "--listen", listen, "--threads", "1", "--max-sessions", "32", *more], isolated=True
    )


def tenants_file(folder: Path) -> str:
    """Of two tenants, whose tokens are "one" and "two"."""
    tokens = folder / "tokens"
    tokens.write_text("one alice\ntwo bob\n")
    tokens.chmod(0o600)
    return str(tokens)


def edge(server: str, drafter: str, *more: str) -> Process:
    options = ["--server", server, "--drafter", drafter, "--http", "127.0.0.1:0", "--threads", "1"]
    return Process(["edge", *options, *more], isolated=True, python=device_python())


@cache
def device_python() -> str:
    return str(DEVICE) if DEVICE.exists() else sys.executable


def ask(address: str, kind: dict[str, Any], question: str, model: str = "tiny") -> list[dict[str, Any]]:
    """What of the answers to a request must not depend on who drafted."""
    with OpenAI(base_url=f"http://{address}/v1", api_key="none", timeout=900, max_retries=0) as client:
        messages = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model=model, messages=messages, **{"max_tokens": 48, **kind})
    return [_facts(choice) for choice in answer.choices]


def _facts(choice: Any) -> dict[str, Any]:
    found = {"text": choice.message.content, "finish_reason": choice.finish_reason}
    if choice.message.tool_calls:
        found["calls"] = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    if choice.logprobs:
        found["logprobs"] = [
            (place.token, place.logprob, [(top.token, top.logprob) for top in place.top_logprobs])
            for place in choice.logprobs.content
        ]
    return found


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


def counted(metrics: str, name: str) -> float:
    """A metric as the server counts it now."""
    with urlopen(f"http://{metrics}/metrics") as reply:
        return value(reply.read().decode(), name)


def value(exposed: str, name: str) -> float:
    """Of a metric on a page of them."""
    [line] = [line for line in exposed.splitlines() if line.startswith(f"opensled:{name} ")]
    return float(line.split()[1])


@pytest.fixture(scope="module")
def wanted():
    """What engine torch writes, asked without a device: answers of all kinds, and long ones."""
    address = f"127.0.0.1:{free_port()}"
    with serve("torch", "--http", address, "--server-drafter", "none") as process:
        process.wait_ready()
        return at_once(address), at_once(address, [LONG] * 8, QUESTIONS)


@pytest.fixture(scope="module")
def api():
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def server(api):
    with serve("vllm", "--http", api, "--kv-tokens", "8192", "--draft-wait", "1") as process:
        yield process.wait_ready(300)


def test_texts_without_a_device_are_those_of_engine_torch(server, api, wanted):
    """By default vLLM's own lookup drafts."""
    assert_equal(at_once(api), wanted[0])
    assert counted(api, "server_drafts_total") > 0


@pytest.mark.parametrize("drafter", ["none", "lookup", "cacheback", "llamacpp", CHAIN])
def test_texts_are_those_of_engine_torch_whoever_drafts(server, wanted, drafter):
    if "llamacpp" in drafter:  # `make install` brings it
        subprocess.run([device_python(), "-c", "import llama_cpp"], check=True)
    with edge(server, drafter) as device:
        assert_equal(at_once(device.wait_ready()), wanted[0])


@pytest.mark.parametrize("drafter", ["draft_model", pytest.param("suffix", marks=ARCTIC)])
def test_vllm_drafts_beside_the_devices(wanted, drafter):
    """Its drafts where no device has one; a device's in their place where there is one."""
    own = ("--draft-model", "tiny-draft") if drafter == "draft_model" else ()
    api, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    options = ("--kv-tokens", "8192", "--server-drafter", f"vllm:{drafter}", *own, "--http", api)
    with ExitStack() as ends:
        server = ends.enter_context(serve("vllm", *options, "--metrics", metrics)).wait_ready(600)
        device = ends.enter_context(edge(server, "llamacpp"))
        alone, both = (
            _accepted(each, metrics, wanted[0], who) for who, each in enumerate((api, device.wait_ready()))
        )
    print(drafter, "accepted of the server and of devices:", alone, both)
    assert alone[0] > 0 == alone[1]
    assert both[1] > 0


def _accepted(api: str, metrics: str, wanted: Sequence[list[dict[str, Any]]], who: int) -> list[float]:
    """Of the server's drafts and of devices', after answers that are `wanted`; on a busy machine drafts of `who` may
    rest at first."""
    for _ in range(5):
        assert_equal(at_once(api), wanted)
        found = [counted(metrics, name) for name in ACCEPTED]
        if found[who]:
            break
    return found


def test_what_it_says_of_itself(server, api):
    with urlopen(f"http://{api}/v1/models") as reply:
        assert json.load(reply)["data"][0]["id"] == "tiny"
    assert counted(api, 'drafter_info{drafter="vllm:ngram"}') == 1
    refused = pytest.raises(BadRequestError, match="engine vllm has log-probabilities of the answer only")
    with OpenAI(base_url=f"http://{api}/v1", api_key="none") as client, refused:
        client.completions.create(model="tiny", prompt="hello", echo=True, logprobs=1, max_tokens=2)


@pytest.mark.parametrize("drafter", ["none", "vllm:ngram"])
def test_short_memory_and_two_killed_servers_change_no_text(wanted, drafter, tmp_path):
    """Memory for four of sixteen texts; two servers die as they write, and the devices go on with the next one."""
    listen = f"127.0.0.1:{free_port()}"
    memory = ("--kv-tokens", "768", "--context", "512")
    options = (*memory, "--tokens", tenants_file(tmp_path), "--server-drafter", drafter)

    metrics = f"127.0.0.1:{free_port()}"

    def start() -> Process:
        process = ends.enter_context(serve("vllm", *options, "--metrics", metrics, listen=listen))
        process.wait_ready(300)
        return process

    def device(name: str) -> Process:
        path = tmp_path / name
        path.write_text(name)
        path.chmod(0o600)
        return edge(listen, "lookup", "--token-file", str(path), "--give-up", "400")

    with ExitStack() as ends:
        target = start()
        tenants = [ends.enter_context(device(name)).wait_ready() for name in ("one", "two")]
        threads = ends.enter_context(ThreadPoolExecutor(16))
        asked = [
            threads.submit(ask, address, LONG, question) for question in QUESTIONS for address in tenants
        ]
        for _ in range(2):
            wait(asked, 3, FIRST_COMPLETED)
            target.kill()
            target = start()
        found = [each.result() for each in asked]
        preempted, drafts = (counted(metrics, f"{name}_total") for name in ("preemptions", "server_drafts"))
    assert found == [each for each in wanted[1] for _ in tenants]
    assert preempted > 0
    assert (drafts > 0) == (drafter != "none")
