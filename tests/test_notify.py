"""What the service manager hears, on real sockets and from real processes."""

import asyncio
import logging
import os
import queue
import socket
import threading

import pytest

from http_api.server import CLOSING, GRACE
from lab.testbed.processes import Process
from opensled.process import notify
from verify_server.front.draining import longest_end


class Manager:
    """The manager's end of $NOTIFY_SOCKET."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.heard = queue.SimpleQueue()  # a thread empties the socket: the kernel holds but ten datagrams
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self):
        while word := self.socket.recv(4096).decode():
            self.heard.put(word)

    def hear(self):
        return self.heard.get(timeout=30)

    def hear_until(self, word):
        """Everything up to `word`."""
        heard = [self.hear()]
        while heard[-1] != word:
            heard.append(self.hear())
        return heard

    def close(self):
        """What was said and not heard yet."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as farewell:
            farewell.sendto(b"", self.socket.getsockname())
        self.thread.join(30)
        self.socket.close()
        return list(iter(lambda: None if self.heard.empty() else self.heard.get(), None))


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path, monkeypatch):
    address = str(tmp_path / "notify") if request.param == "path" else f"@opensled-test-{os.getpid()}"
    manager = Manager(address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    yield manager
    assert set(manager.close()) <= {"WATCHDOG=1"}


async def test_ready_and_stopping(manager):
    async with notify.announce():
        notify.stopping(125.5)
    assert [manager.hear(), manager.hear()] == ["READY=1", "STOPPING=1\nEXTEND_TIMEOUT_USEC=125500000"]


async def test_the_watchdog_hears_the_event_loop(manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    slept, sleep = [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: slept.append(seconds) or sleep(seconds))
    async with notify.announce():
        assert await asyncio.to_thread(manager.hear) == "READY=1"
        assert [await asyncio.to_thread(manager.hear) for _ in range(3)] == ["WATCHDOG=1"] * 3
    assert set(slept) == {0.01}  # half the interval


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        pytest.param("3000000", str(os.getpid()), 3.0, id="ours"),  # the id must not differ between workers
        ("3000000", "", 3.0),
        ("3000000", "1", 0.0),
        ("", "", 0.0),
        ("soon", "", 0.0),
    ],
)
def test_whose_watchdog(monkeypatch, usec, pid, seconds):
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    assert notify.watchdog_seconds() == seconds


def test_nobody_listens(monkeypatch, caplog, tmp_path):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.stopping(1)
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notify.stopping(1)  # a warning, never an end
    assert "STOPPING=1" in caplog.text


def test_real_processes_tell_when_they_are_ready_and_when_they_drain(tmp_path, monkeypatch):
    def manager_of(name):
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / name))
        return Manager(str(tmp_path / name))

    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    of_server = manager_of("server")
    arguments = ["--engine", "tests.fake_target:load", "--listen", "127.0.0.1:0", "--drain", "400"]
    with Process(["serve", *arguments]) as server:
        address = server.wait_ready()
        assert of_server.hear() == "READY=1"
        of_edge = manager_of("edge")
        arguments = ["--server", address, "--drafter", "lookup", "--http", "127.0.0.1:0"]
        with Process(["edge", *arguments]) as edge:
            assert edge.wait_ready() and of_edge.hear() == "READY=1"
            assert of_edge.hear() == "WATCHDOG=1"
            assert edge.stop() == 0
            ends = f"STOPPING=1\nEXTEND_TIMEOUT_USEC={(GRACE + CLOSING) * 1e6:.0f}"
            assert set(of_edge.hear_until(ends)) <= {"WATCHDOG=1", ends}
            assert set(of_edge.close()) <= {"WATCHDOG=1"}
        assert server.stop() == 0
        ends = f"STOPPING=1\nEXTEND_TIMEOUT_USEC={longest_end(400) * 1e6:.0f}"
        assert set(of_server.hear_until(ends)) <= {"WATCHDOG=1", ends}
        assert set(of_server.close()) <= {"WATCHDOG=1"}


def test_a_manager_that_does_not_listen_costs_the_service_nothing(tmp_path, monkeypatch, caplog):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "deaf"))
        with caplog.at_level(logging.WARNING):
            while not caplog.records:  # until the kernel holds no more of them
                notify.send("WATCHDOG=1", patience=0.0)
            notify.send("READY=1", patience=0.01)
    assert "READY=1: timed out" in caplog.text
