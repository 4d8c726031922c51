"""Servers `vllm serve --opensled` with the model `tiny`, what their users ask, and how tests are chosen for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from openai import OpenAI

from edge_client.link.link import Endpoint
from lab.testbed.process_guard import below
from lab.testbed.processes import Process, free_port
from tests.vllm import testing_plugins
from tests.vllm.answers import QUESTIONS, SCHEMA, TINY, Answer, prompt_of
from tests.vllm.known_devices import Style, Written, answered, describe

READY_S = 600.0
# The environment of vLLM has no llama.cpp; that of the checkout has.
DEVICE = Path(__file__).resolve().parents[2] / ".venv/bin/python"
# On a busy machine goodput would let drafts rest, and not wait as long.
VERIFIED = {"OPENSLED_POLICY": "fcfs", "OPENSLED_DRAFT_WAIT": "5"}
WORDS = (
    *(
        "--dtype",
        "float32",
        "--max-model-len",
        "512",
        "--block-size",
        "32",
        "--gpu-memory-utilization",
        "0.2",
    ),
    *("--enforce-eager", "--disable-uvicorn-access-log", "--generation-config", "vllm"),
    *("--served-model-name", "tiny", "--host", "127.0.0.1"),
)
SHORT_KV = ("--num-gpu-blocks-override", "37")  # for a third of 32 answers
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


class Setup(NamedTuple):
    """How a server starts."""

    options: Sequence[str] = ()
    plugins: Sequence[str] = ()  # of testing_plugins
    settings: Mapping[str, str] = VERIFIED
    devices: bool = True  # False: stock vLLM


SERVERS = {
    "goodput, short KV": Setup(SHORT_KV, settings={}),
    "asynchronous": Setup(plugins=("testing_asynchronous",)),
    "two processes, two fronts": Setup(("--tensor-parallel-size", "2", "--api-server-count", "2")),
    "asynchronous goodput, short KV": Setup(SHORT_KV, ("testing_asynchronous",), {}),
    "vLLM drafts": Setup(("--speculative-config", json.dumps(NGRAM))),
}
RARE = ("asynchronous goodput, short KV", "vLLM drafts")  # `make vllm-matrix` has them
USERS: dict[str, dict[str, Any]] = {  # what users ask beside devices
    "greedy": {"temperature": 0},
    "seed": {"seed": 5},
    "log-probabilities": {"temperature": 0, "logprobs": 3},
    "log-probabilities, seed": {"seed": 5, "logprobs": 3},
    "echo": {"temperature": 0, "echo": True, "logprobs": 1, "max_tokens": 4},
    "prompt's log-probabilities": {"temperature": 0, "prompt_logprobs": 2},
    "penalties": {
        "temperature": 0,
        "presence_penalty": 0.9,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.3,
    },
    "penalties, nucleus": {"seed": 9, "repetition_penalty": 1.3, "top_p": 0.9, "top_k": 50},
    "least probability": {"seed": 4, "min_p": 0.05},
    "biases": {"temperature": 0, "logit_bias": {"300": 5.0, "301": -100}, "min_tokens": 10},
    "words": {"temperature": 0, "bad_words": ["the"], "allowed_token_ids": [*range(200, 900)]},
    "two": {"n": 2, "seed": 3},
    "stop": {"temperature": 0, "stop": [" the", "."]},
    "stop, kept": {"seed": 8, "stop": ["a", "e"], "include_stop_str_in_output": True},
    "stream": {"seed": 6, "stream": True},
    "priority": {"temperature": 0, "priority": 0},
    "schema": {"temperature": 0, "structured_outputs": {"json": SCHEMA}},
    "regular expression": {"seed": 2, "structured_outputs": {"regex": "[a-f]{6}-[0-9]{4}"}},
    "ignored end": {"temperature": 0, "ignore_eos": True, "max_tokens": 64},
    "one token": {"seed": 1, "max_tokens": 1},
    "guessed name": {"seed": 5, "vllm_xargs": {"opensled": "session"}},
    "guessed terms": {"seed": 5, "vllm_xargs": {"opensled": [0, 1, 2]}},
}


class Server(NamedTuple):
    """A server that is ready."""

    name: str  # in SERVERS
    devices: str  # HOST:PORT
    users: str
    folder: Path
    process: Process
    alone: dict[str, list[Any]]  # answers of its users without devices

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.devices, timeout=READY_S)

    @property
    def fault(self) -> Path:
        return self.folder / "fault"

    def ask(self, kind: str, question: str) -> list[Any]:
        """A user's answers to a request of USERS: ids, texts, reasons, log-probabilities; or a refusal."""
        body = {"model": "tiny", "prompt": list(prompt_of(question)), "max_tokens": 40, "temperature": 0.8}
        request = Request(f"http://{self.users}/v1/completions", method="POST")
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps({**body, "return_token_ids": True, **USERS[kind]}).encode()
        try:
            with urlopen(request, timeout=READY_S) as answer:
                found = answer.read().decode()
        except HTTPError as error:
            assert error.code == 400, error.read()
            return [error.read().decode()]
        if not USERS[kind].get("stream"):
            return [_facts(choice) for choice in json.loads(found)["choices"]]
        events = [
            line.removeprefix("data: ") for line in found.split("\n\n") if line[6:] not in ("", "[DONE]")
        ]
        return [id for event in events for id in json.loads(event)["choices"][0]["token_ids"] or []]

    def ask_all(self, kinds: Sequence[str] = (*USERS,)) -> dict[str, list[Any]]:
        """The answers to one request of each kind, at once."""
        questions = [QUESTIONS[number % len(QUESTIONS)] for number in range(len(kinds))]
        with ThreadPoolExecutor(len(kinds)) as threads:
            return dict(zip(kinds, threads.map(self.ask, kinds, questions)))

    def write(self, known: Sequence[Answer], style: Style) -> tuple[list[Written], dict[str, list[Any]]]:
        """Answers of devices, and of users at the same time."""
        return asyncio.run(self._write(known, style))

    async def _write(self, known: Sequence[Answer], style: Style) -> tuple[list[Written], Any]:
        users = asyncio.create_task(asyncio.to_thread(self.ask_all))
        info = await describe(self.endpoint)
        asked = [
            answered(self.endpoint, info, answer, style, number, most=4 * (number >= len(known)))
            for number, answer in enumerate([*known, *known[: style.cancelled]])
        ]
        return (await asyncio.gather(*asked))[: len(known)], await users

    def running(self) -> float:
        """Requests that vLLM has."""
        with urlopen(f"http://{self.users}/metrics", timeout=READY_S) as page:
            lines = page.read().decode().splitlines()
        wanted = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))

    def kill(self, whole: bool) -> None:
        """All of its processes, or only vLLM's engine: until the server has ended."""
        names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in below(self.process.process.pid)}
        for pid, name in names.items():
            if whole or "EngineCore" in name:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.process.wait()


def _facts(choice: dict[str, Any]) -> list[Any]:
    names = ("token_ids", "text", "finish_reason", "stop_reason", "logprobs", "prompt_logprobs")
    return [choice.get(name) for name in names]


def assert_alike(found: Any, wanted: Any, place: str = "") -> None:
    """But for the last bits of log-probabilities."""
    if isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-3), place
    elif isinstance(wanted, (dict, list)):
        assert len(found) == len(wanted), (place, found, wanted)
        names = wanted if isinstance(wanted, dict) else range(len(wanted))
        for name in names:
            assert_alike(found[name], wanted[name], f"{place}/{name}")
    else:
        assert found == wanted, place


@contextmanager
def serving(folder: Path, name: str, setup: Setup, ports: tuple[str, str] | None = None) -> Iterator[Server]:
    """A server, ready; `ports`: its addresses for devices and users."""
    devices, users = ports or [f"127.0.0.1:{free_port()}" for _ in range(2)]
    plugins = testing_plugins.installed(folder / "plugins")
    environment = {
        **setup.settings,
        "PYTHONPATH": os.pathsep.join([str(plugins), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VLLM_PLUGINS": ",".join(["testing_faults", *setup.plugins]),
        testing_plugins.FAULT: str(folder / "fault"),
        "OMP_NUM_THREADS": "1",
    }
    ours = ("--opensled", "--opensled-listen", devices) if setup.devices else ()
    words = [str(TINY), *WORDS, "--port", users.rpartition(":")[2], *ours, *setup.options]
    with Process(words, isolated=True, module="vllm_plugin.serve", environment=environment) as process:
        server = Server(name, devices, users, folder, process, {})
        if setup.devices:
            process.wait_ready(READY_S)
        wait_until(lambda: _healthy(server), process)
        yield server


def _healthy(server: Server) -> bool:
    try:
        urlopen(f"http://{server.users}/health", timeout=10).close()
    except OSError:
        return False
    return True


def wait_until(holds: Any, process: Process) -> None:
    """Until it holds; fails where the process ends before."""
    deadline = time.monotonic() + READY_S
    while not holds():
        assert process.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


def some(*axes: Sequence[str], together: int = 2) -> list[Any]:
    """All rows. Marked long are those of RARE, and those that are left out by a choice in which so many values of
    different axes meet as often as they can at least once."""
    rows = [*product(*axes)]
    meet = {row: {*combinations(enumerate(row), together)} for row in rows if row[0] not in RARE}
    left, chosen = set().union(*meet.values()), set()
    while left:
        best = max(meet, key=lambda row: len(left & meet[row]))
        left -= meet[best]
        chosen.add(best)
    return [pytest.param(*row, marks=[] if row in chosen else [pytest.mark.long]) for row in rows]


def survivors(processes: Sequence[psutil.Process], seconds: float = 20) -> list[psutil.Process]:
    """Those of them that run on for some seconds after the end of their server; one that nobody has buried does not."""
    deadline = time.monotonic() + seconds
    while left := [each for each in processes if _runs(each)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def serve(engine: str, *more: str, model: str = "tiny", log: Path | None = None) -> Process:
    words = ["serve", "--engine", engine, "--model", model, "--dtype", "float32", "--listen", "127.0.0.1:0"]
    return Process([*words, "--threads", "1", "--max-sessions", "32", *more], isolated=True, log=log)


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
    return [_told(choice) for choice in answer.choices]


def _told(choice: Any) -> dict[str, Any]:
    found = {"text": choice.message.content, "finish_reason": choice.finish_reason}
    if choice.message.tool_calls:
        found["calls"] = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    if choice.logprobs:
        found["logprobs"] = [
            (place.token, place.logprob, [(top.token, top.logprob) for top in place.top_logprobs])
            for place in choice.logprobs.content
        ]
    return found
