"""SIGHUP: a server whose terminal goes finishes its answers; one that is asked to read its files again goes on."""

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from edge_client.terminal.chat import Runner
from lab.testbed.processes import Process
from opensled.process import ending
from tests.draining import PARAMS, PROMPT, SERVE, hanging, refused, rest, until_not_serving
from tests.draining import gate as gate
from tests.fake_target import cycle
from tests.gated_target import GATE
from tests.serving import linked
from tests.system import until


def whole():
    expected = list(PROMPT)
    while len(expected) < len(PROMPT) + PARAMS.max_tokens:
        expected.append(cycle(expected))
    return expected[len(PROMPT) :]


@contextmanager
def started(arguments, terminal: str | None, **environment):
    module, before = ("opensled", ()) if terminal is None else ("tests.on_terminal", (terminal,))
    with Process((*before, *arguments), isolated=True, module=module, environment=environment) as process:
        process.wait_ready()
        yield process


@pytest.fixture
def terminal():
    """The end of the person who sits there, and the path of the other one."""
    near, far = os.openpty()
    yield near, os.ttyname(far)
    os.close(far)


async def test_answers_of_a_server_whose_terminal_goes_are_finished(gate, terminal):
    near, far = terminal
    with started(SERVE, far, **{GATE: str(gate)}) as server:
        async with linked(server.address) as link:
            stream, tokens = await hanging(link)
            os.close(near)
            await asyncio.wait_for(until_not_serving(server.address), 20)
            await refused(link)
            server.process.send_signal(signal.SIGHUP)  # a shell passes on what the system sends too
            await asyncio.sleep(2 * ending.GOING_S)
            gate.touch()
            assert tokens + await rest(stream) == whole()
        await until(lambda: server.process.poll() is not None, 20)
        assert server.process.returncode == 0


@pytest.mark.parametrize("has_terminal", [True, False])
async def test_a_server_that_is_sent_sighup_goes_on(gate, terminal, has_terminal):
    near, far = terminal
    with started(SERVE, far if has_terminal else None, **{GATE: str(gate)}) as server:
        async with linked(server.address) as link:
            stream, tokens = await hanging(link)
            server.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(2 * ending.GOING_S)
            gate.touch()
            assert tokens + await rest(stream) == whole()
            stream, tokens = await hanging(link)
            assert tokens + await rest(stream) == whole()
        assert server.process.poll() is None
        assert server.stop() == 0
    os.close(near)


def test_what_is_ignored_stays_ignored(gate):
    """As under nohup."""
    with started(SERVE, "-", **{GATE: str(gate)}) as server:
        assert ignored(server.process.pid)


def ignored(pid: int) -> bool:
    """Whether a process ignores SIGHUP."""
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (signal.SIGHUP - 1) & 1)


def test_a_device_goes_on_too_and_ends_with_its_terminal(gate, terminal):
    near, far = terminal
    gate.touch()
    with started(SERVE, "-", **{GATE: str(gate)}) as server:
        edge = ("edge", "--server", server.address, "--drafter", "lookup", "--http", "127.0.0.1:0")
        with started(edge, far) as device:
            device.process.send_signal(signal.SIGHUP)
            asyncio.run(asyncio.sleep(2 * ending.GOING_S))
            assert httpx.get(f"http://{device.address}/health").status_code == 200
            os.close(near)
            assert device.process.wait(20) == 0


@pytest.mark.parametrize("goes", [True, False])
async def test_once_a_terminal_has_gone_every_further_sighup_says_the_same(goes, tmp_path, monkeypatch):
    heard: list[object] = []
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    (tmp_path / "tty").touch()
    monkeypatch.setattr(ending, "TERMINAL", str(tmp_path / "tty"))
    monkeypatch.setattr(ending, "GOING_S", 0.01)
    ending.heed(heard.append, lambda: heard.append("renew"))
    if goes:
        (tmp_path / "tty").unlink()
    signal.raise_signal(signal.SIGHUP)
    await until(lambda: len(heard) == 1)
    signal.raise_signal(signal.SIGHUP)
    await asyncio.sleep(0.1)
    signal.raise_signal(signal.SIGTERM)
    await until(lambda: heard[-1] == signal.SIGTERM)
    assert heard[:-1] == ([signal.SIGHUP] if goes else ["renew", "renew"])


@pytest.mark.parametrize(
    "run", [lambda wait: asyncio.run(ending.interruptible(wait)), Runner().__enter__().run]
)
def test_ctrl_c_ends_a_wait_that_it_does_not_interrupt(run):
    """It arrives in another thread, as one does that comes between Python's last look and the system's wait."""

    async def wait():
        interrupt = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
        interrupt.start()
        await asyncio.wait_for(asyncio.Event().wait(), 60)

    with pytest.raises(KeyboardInterrupt):
        run(wait())
