"""`vllm serve --opensled`: users and devices in the same steps; each text is that of stock vLLM, or of engine torch.

Devices draft over real gRPC; the reference of devices is engine torch, of users the same server before any device came
(tests/vllm/test_stock.py knows it from stock vLLM).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

from lab.testbed.processes import Process, free_port
from tests.vllm import testing_plugins
from tests.vllm.answers import QUESTIONS, TINY, Answer, by_torch, prompt_of
from tests.vllm.known_devices import Style, Written, answered, describe
from tests.vllm.test_devices import STYLES, assert_same
from tests.vllm.test_texts import KINDS

READY_S = 600.0
SIZES = (
    "--dtype",
    "float32",
    "--max-model-len",
    "512",
    "--block-size",
    "32",
    "--gpu-memory-utilization",
    "0.2",
)
QUIET = ("--enforce-eager", "--disable-uvicorn-access-log", "--generation-config", "vllm")
SERVERS = {  # options of vLLM, plug-ins for tests, settings of ours
    "plain, little KV": (("--num-gpu-blocks-override", "37"), (), {}),
    "asynchronous": ((), ("testing_asynchronous",), {"OPENSLED_POLICY": "fcfs"}),
    "two processes, two fronts": (
        ("--tensor-parallel-size", "2", "--api-server-count", "2"),
        (),
        {"OPENSLED_POLICY": "fcfs"},
    ),
}


class Server(NamedTuple):
    devices: str  # HOST:PORT
    users: str
    fault: Path

    def ask(self, question: str) -> list[int]:
        """The ids of a user's answer."""
        body = {"model": "target", "prompt": list(prompt_of(question)), "max_tokens": 48, "temperature": 0.8}
        body |= {"seed": 5, "return_token_ids": True}
        request = Request(f"http://{self.users}/v1/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=READY_S) as answer:
            found: list[int] = json.load(answer)["choices"][0]["token_ids"]
        return found

    def ask_all(self) -> list[list[int]]:
        with ThreadPoolExecutor(len(QUESTIONS)) as threads:
            return list(threads.map(self.ask, QUESTIONS))

    def write(self, known: Sequence[Answer], style: Style) -> tuple[list[Written], list[list[int]]]:
        """Answers of devices, and of users at the same time."""
        return asyncio.run(self._write(known, style))

    async def _write(self, known: Sequence[Answer], style: Style) -> tuple[list[Written], list[list[int]]]:
        users = asyncio.create_task(asyncio.to_thread(self.ask_all))
        info = await describe(self.devices)
        written = [answered(self.devices, info, answer, style, number) for number, answer in enumerate(known)]
        return await asyncio.gather(*written), await users


@contextmanager
def serving(
    folder: Path, name: str, ports: tuple[int, int] | None = None
) -> Iterator[tuple[Server, Process]]:
    options, plugins, settings = SERVERS[name]
    devices, users = ports or (free_port(), free_port())
    listen = ("--host", "127.0.0.1", "--port", str(users), "--opensled-listen", f"127.0.0.1:{devices}")
    server = Server(f"127.0.0.1:{devices}", f"127.0.0.1:{users}", folder / "fault")
    place = (
        testing_plugins.installed(folder / "plugins")
        if not (folder / "plugins").exists()
        else folder / "plugins"
    )
    environment = {
        **settings,
        "PYTHONPATH": os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VLLM_PLUGINS": ",".join(["testing_faults", *plugins]),
        testing_plugins.FAULT: str(server.fault),
        "OMP_NUM_THREADS": "1",
    }
    words = [str(TINY), "--served-model-name", "target", "--opensled", *SIZES, *QUIET, *listen, *options]
    with Process(words, isolated=True, module="vllm_plugin.serve", environment=environment) as process:
        process.wait_ready(READY_S)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            try:
                urlopen(f"http://{server.users}/health", timeout=10).close()
                break
            except OSError:
                time.sleep(0.2)
        yield server, process


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), request.param) as (found, _):
        yield found


@pytest.fixture(scope="module")
def known() -> list[Answer]:
    questions = [*QUESTIONS, *reversed(QUESTIONS)]
    return [
        by_torch(Answer(prompt_of(question), **kind))
        for question, kind in zip(questions, [*KINDS.values()] * 2)
    ]


@pytest.fixture(scope="module")
def alone(server) -> list[list[int]]:
    """Answers of users without devices."""
    return server.ask_all()


@pytest.mark.parametrize("style", STYLES)
def test_devices_and_users_share_steps_and_each_text_is_the_targets_own(server, known, alone, style):
    written, users = server.write(known, STYLES[style])
    for found, answer in zip(written, known, strict=True):
        assert_same(found, answer)
    assert users == alone
    assert sum(found.stats.drafted for found in written)


@pytest.mark.parametrize("part", [part for parts in testing_plugins.PARTS.values() for part in parts])
def test_a_fault_of_ours_costs_drafts_and_no_text(server, known, alone, part):
    server.fault.write_text(part)
    written, users = server.write(known[:8], STYLES["right"])
    assert not server.fault.exists(), "the part ran"
    for found, answer in zip(written, known):
        assert_same(found, answer)
    assert users == alone


def test_devices_go_on_where_a_killed_server_left_them(tmp_path, known):
    slow = replace_late(STYLES["right"])
    with ExitStack() as stack:
        first = stack.enter_context(serving(tmp_path, "asynchronous"))
        server, process = first

        async def write() -> list[Written]:
            info = await describe(server.devices)
            each = [
                asyncio.create_task(answered(server.devices, info, one, slow, n))
                for n, one in enumerate(known)
            ]
            while not any(task.done() for task in each):
                await asyncio.sleep(0.01)
            assert not all(task.done() for task in each)
            process.kill()
            ports = tuple(int(address.rpartition(":")[2]) for address in (server.devices, server.users))
            await asyncio.to_thread(stack.enter_context, serving(tmp_path, "asynchronous", ports))
            return await asyncio.gather(*each)

        for found, answer in zip(asyncio.run(write()), known, strict=True):
            assert_same(found, answer)


def replace_late(style: Style) -> Style:
    return style._replace(late={0.1: 1.0})
