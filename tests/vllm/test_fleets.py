"""Servers of engine vllm in larger fleets: replicas on Ray behind a gateway, and the target above a relay."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack

import psutil
import pytest

from lab.testbed.processes import Process, free_port
from lab.testbed.replica_cluster import REPLICA, alone
from tests.vllm.answers import QUESTIONS
from tests.vllm.test_serve import LONG, ask, assert_equal, at_once, edge, serve


@pytest.fixture(scope="module")
def wanted():
    """What engine torch writes, asked without a device: answers of all kinds, and long ones."""
    address = f"127.0.0.1:{free_port()}"
    with serve("torch", "--http", address, "--server-drafter", "none") as process:
        process.wait_ready()
        return at_once(address), at_once(address, [LONG] * 4, QUESTIONS[:4])


@pytest.fixture
def replicas():
    """Two replicas behind a gateway."""
    with alone(), serve("vllm", "--replicas", "2", "--kv-tokens", "4096") as process:
        process.wait_ready(600)
        while len(pids(process)) < 2:  # on a busy machine the gateway does not wait for the second one
            assert process.process.poll() is None
            time.sleep(0.2)
        yield process


def pids(process: Process) -> list[int]:
    """Of the replicas."""
    below = psutil.Process(process.process.pid).children(recursive=True)
    return [one.pid for one in below if one.cmdline() and one.cmdline()[0].startswith(REPLICA)]


def test_texts_of_replicas_are_those_of_engine_torch_also_where_one_dies(replicas, wanted):
    with ExitStack() as ends:
        devices = [ends.enter_context(edge(replicas.address, "lookup", "--give-up", "400")) for _ in range(2)]
        addresses = [device.wait_ready() for device in devices]
        for address in addresses:
            assert_equal(at_once(address), wanted[0])
        threads = ends.enter_context(ThreadPoolExecutor(8))
        asked = [
            threads.submit(ask, address, LONG, question)
            for question in QUESTIONS[:4]
            for address in addresses
        ]
        wait(asked, 2, FIRST_COMPLETED)
        assert not all(one.done() for one in asked), "it is killed while they are written"
        os.kill(pids(replicas)[0], signal.SIGKILL)
        assert [one.result() for one in asked] == [each for each in wanted[1] for _ in addresses]


@pytest.mark.long
def test_a_replica_of_two_processes_writes_the_same(wanted):
    options = ("--replicas", "1", "--vllm", "tensor_parallel_size=2")
    with alone(), serve("vllm", *options) as process, edge(process.wait_ready(600), "lookup") as device:
        assert_equal(at_once(device.wait_ready()), wanted[0])


def test_texts_below_a_relay_are_those_of_engine_torch(wanted):
    hub = ["--model", "tiny-hub", "--engine", "torch", "--dtype", "float32", "--threads", "1"]
    with ExitStack() as ends:
        target = ends.enter_context(serve("vllm", "--kv-tokens", "8192")).wait_ready(300)
        words = ["relay", "--upstream", target, "--listen", "127.0.0.1:0", *hub]
        relay = ends.enter_context(Process(words, isolated=True)).wait_ready(300)
        device = ends.enter_context(edge(relay, "lookup")).wait_ready()
        assert_equal(at_once(device), wanted[0])
