"""Servers of engine vllm in larger fleets: replicas on Ray behind a gateway, and the target above a relay."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from urllib.request import urlopen

import psutil
import pytest

from edge_client.link.link import Endpoint
from lab.testbed.process_guard import below
from lab.testbed.processes import Process, free_port
from lab.testbed.replica_cluster import alone
from opensled.core.messages import SamplingParams
from tests.vllm.answers import QUESTIONS, Answer, by_torch, prompt_of
from tests.vllm.known_devices import Style, answered, describe
from tests.vllm.servers import survivors
from vllm_plugin.replica import PLACE

READY_S = 900.0
KV = 2048  # tokens of a replica
TINY = ("--model", "tiny", "--dtype", "float32", "--threads", "1", "--listen", "127.0.0.1:0")
MIXED = Style(right=0.6, late={0.02: 0.3, 0.2: 0.1})


class Cluster:
    """Replicas on a Ray of their own, behind a gateway."""

    def __init__(self, replicas: int, *more: str) -> None:
        self._metrics = f"127.0.0.1:{free_port()}"
        wanted = ("--replicas", str(replicas), "--metrics", self._metrics, "--kv-tokens", str(KV))
        words = ["serve", "--engine", "vllm", *TINY, *wanted, *more]
        self.process = Process(words, isolated=True)
        self.address = self.process.wait_ready(READY_S)
        # The gateway does not wait so long
        self.wait_until(lambda: len(self.each("kv_tokens_free")) == replicas)

    def each(self, name: str) -> dict[str, float]:
        """A metric of each replica that is up."""
        found = re.findall(rf'opensled:replica_{name}{{replica="(.*)"}} (.*)', self.metrics())
        return {replica: float(value) for replica, value in found}

    def metrics(self) -> str:
        with urlopen(f"http://{self._metrics}/metrics") as reply:
            text: str = reply.read().decode()
        return text

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not holds():
            assert self.process.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)

    def kill_busiest(self) -> None:
        """SIGKILL to vLLM's server of the replica that has most sessions."""
        self.wait_until(lambda: any(self.each("sessions").values()))
        sessions = self.each("sessions")
        os.kill(self._servers()[max(sessions, key=sessions.__getitem__)], signal.SIGKILL)

    def _servers(self) -> dict[str, int]:
        """The process of each replica's server."""
        found = {}
        for one in psutil.Process(self.process.process.pid).children(recursive=True):
            if "vllm_plugin.replica" in "".join(one.cmdline()[:3]):
                found[json.loads(one.environ()[PLACE])[1]] = one.pid
        return found


@pytest.fixture(scope="module")
def known() -> list[Answer]:
    """By engine torch."""
    return [
        by_torch(Answer(prompt_of(question), SamplingParams(0.8 * (seed % 2), seed=seed), length=120))
        for seed, question in enumerate(QUESTIONS)
    ]


async def assert_same(
    address: str, known: Sequence[Answer], during: Callable[[], None] = lambda: None
) -> None:
    """Devices get the known answers, all at once."""
    server = Endpoint(address, timeout=120.0)
    info = await describe(server)
    asked = [answered(server, info, answer, MIXED, number) for number, answer in enumerate(known)]
    *found, _ = await asyncio.gather(*asked, asyncio.to_thread(during))
    for mine, answer in zip(found, known, strict=True):
        assert (list(mine.ids), mine.finish_reason) == (answer.text, answer.finish_reason)
    assert sum(mine.stats.drafted for mine in found)


def test_texts_of_replicas_are_those_of_engine_torch_also_below_a_relay_and_where_one_dies(known):
    hub = ("--model", "tiny-hub", "--engine", "torch", "--dtype", "float32", "--threads", "1")
    with alone(), ExitStack() as ends:
        cluster = Cluster(2)
        ends.enter_context(cluster.process)
        asyncio.run(assert_same(cluster.address, known))
        assert all(0 < free <= KV for free in cluster.each("kv_tokens_free").values()), "vLLM says so"
        words = ["relay", "--upstream", cluster.address, "--listen", "127.0.0.1:0", *hub]
        relay = ends.enter_context(Process(words, isolated=True)).wait_ready(READY_S)
        asyncio.run(assert_same(relay, known))
        asyncio.run(assert_same(cluster.address, 4 * known, cluster.kill_busiest))
        assert not re.search("opensled:placements_resumed_total 0", cluster.metrics())
        processes = [psutil.Process(pid) for pid in below(cluster.process.process.pid)]
        assert cluster.process.stop() == 0
        assert survivors(processes) == []


@pytest.mark.long
def test_a_replica_of_two_processes_writes_the_same(known):
    with alone(), Cluster(1, "--vllm", "tensor_parallel_size=2").process as process:
        asyncio.run(assert_same(process.address, known))
