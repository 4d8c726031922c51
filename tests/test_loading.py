"""Servers that take their ports first and load after, and what devices beside them do meanwhile."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edge_client.link import loading_server
from edge_client.link.link import Endpoint, Link
from edge_client.link.link_errors import NOTHING_LISTENS
from lab.testbed.processes import Process, free_port
from opensled.core.errors import Loading, Unreachable
from tests.commands import opensled
from tests.loops import block_until, in_loop
from tests.slow_start import DONE, PIPE
from verify_server.front import service

PATIENCE = 60.0
WAITS = "is loading its model; waiting"
FAKE = ("--engine", "tests.slow_start:load")
RELAY = ("relay", "--engine", "tests.slow_start:load", "--model", "tiny")


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "load"
    os.mkfifo(path)
    return path


@pytest.fixture
def port():
    """A free one, by number: that of a server is told with its ready line only."""
    return free_port()


def serving(pipe, port, *flags, verb=("serve", *FAKE), log=None):
    words = [*verb, "--listen", f"127.0.0.1:{port}", *flags]
    return Process(words, isolated=True, environment={PIPE: str(pipe)}, log=log)


def listens(port):
    def connected():
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return False
        return True

    block_until(connected, PATIENCE)


@in_loop
async def described(port):
    link = Link(Endpoint(f"127.0.0.1:{port}"))
    try:
        return await link.describe()
    finally:
        await link.close()


def doctor(port):
    words = ["doctor", "--server", f"127.0.0.1:{port}", "--drafter", "none"]
    return opensled(*words).stdout


def health(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status


def test_until_it_has_loaded_a_server_says_so_on_every_port(pipe, port):
    with serving(pipe, port, "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as server:
        listens(port)
        with pytest.raises(Loading, match="is loading its model; try again"):
            described(port)
        assert "is loading its model" in doctor(port)
        assert health(port) == health_pb2.HealthCheckResponse.NOT_SERVING
        metrics = f"http://{server.lines[0].removeprefix('metrics on http://')}"
        assert "process_open_fds" in httpx.get(metrics).text and "opensled:" not in httpx.get(metrics).text
        assert len(server.lines) == 1  # no ready line
        pipe.write_text(DONE)
        server.wait_ready()
        assert described(port).model_id == "fake"
        assert health(port) == health_pb2.HealthCheckResponse.SERVING
        assert "opensled:" in httpx.get(metrics).text
        assert server.stop() == 0


def test_until_it_has_loaded_the_http_api_says_503(pipe, port):
    base = f"http://127.0.0.1:{free_port()}"
    with serving(pipe, port, "--http", base.removeprefix("http://")) as server:
        listens(port)
        asked = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        for reply in (
            httpx.post(f"{base}/v1/chat/completions", json=asked),
            httpx.get(f"{base}/v1/models"),
            httpx.get(f"{base}/readyz"),
            httpx.get(f"{base}/"),
        ):
            assert reply.status_code == 503 and reply.headers["Retry-After"] == "1"
            error = reply.json()["error"]
            assert error["message"] == Loading.words
            assert (error["type"], error["code"]) == ("server_error", "loading")
        ollama = httpx.post(f"{base}/api/chat", json=asked)
        assert (ollama.status_code, ollama.json()) == (503, {"error": Loading.words})
        alive = httpx.get(f"{base}/health")
        assert (alive.status_code, alive.json()) == (200, {"status": "ok", "server": "loading"})
        pipe.write_text(DONE)
        server.wait_ready()
        assert httpx.get(f"{base}/readyz").json() == {"status": "ready", "server": "reachable"}
        assert httpx.post(f"{base}/v1/chat/completions", json=asked).status_code == 200


@pytest.mark.parametrize("flag", ["--listen", "--http", "--metrics"])
def test_a_taken_port_is_told_before_anything_is_loaded(flag, pipe):
    """Nobody writes into the pipe: the target never comes."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["serve", *FAKE, "--listen", "127.0.0.1:0", flag, address]
        done = opensled(*words, variables={PIPE: str(pipe)}, timeout=PATIENCE)
    assert done.returncode == 1 and f"error: cannot listen on {address}" in done.stderr
    assert "listening on" not in done.stdout


def test_a_load_that_fails_gives_its_error_and_the_ports_back(pipe, port, tmp_path):
    log = tmp_path / "log"
    with serving(pipe, port, "--http", "127.0.0.1:0", log=log) as server:
        listens(port)
        pipe.write_text("no such weights")
        assert server.process.wait(PATIENCE) == 1
    assert "error: no such weights" in log.read_text()
    assert "Traceback" not in log.read_text()
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("flags", [(), ("--http", "127.0.0.1:0")], ids=["gRPC", "HTTP too"])
def test_a_signal_ends_a_server_that_loads(number, flags, pipe, port, tmp_path):
    log = tmp_path / "log"
    with serving(pipe, port, *flags, log=log) as server:
        listens(port)
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
    assert log.read_text() == ""


def test_an_edge_and_a_relay_wait_for_the_server_and_say_so_once(pipe, port, tmp_path):
    """The relay loads after the server, by the same pipe."""
    logs = tmp_path / "relay", tmp_path / "edge"
    below = free_port()
    above = ("--upstream", f"127.0.0.1:{port}")
    device = ["edge", "--server", f"127.0.0.1:{below}", "--drafter", "lookup", "--http", "127.0.0.1:0"]
    with contextlib.ExitStack() as started:
        server = started.enter_context(serving(pipe, port))
        listens(port)  # whoever asks before that is told that nothing listens there, and ends
        relay = started.enter_context(serving(pipe, below, *above, verb=RELAY, log=logs[0]))
        listens(below)
        with Process(device, isolated=True, log=logs[1]) as edge:
            for log in logs:
                block_until(
                    lambda log=log: log.exists() and "is loading its model; waiting" in log.read_text(),
                    PATIENCE,
                )
            pipe.write_text(DONE)
            server.wait_ready()
            assert not relay.address and not edge.address
            pipe.write_text(DONE)
            relay.wait_ready()
            answer = httpx.post(
                f"http://{edge.wait_ready()}/v1/completions", json={"prompt": "Hi", "max_tokens": 4}
            )
            assert answer.json()["usage"]["completion_tokens"] == 4
    assert all(log.read_text().count(WAITS) == 1 for log in logs)


def test_generate_waits_and_answers(pipe, port):
    words = ["generate", "--server", f"127.0.0.1:{port}", "Hi", "--max-tokens", "4", "--json"]
    with serving(pipe, port) as server:
        listens(port)
        asking = subprocess.Popen(
            [sys.executable, "-m", "opensled", *words, "--drafter", "none"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with asking:
            assert "the server is loading its model; waiting" in asking.stderr.readline()
            pipe.write_text(DONE)
            server.wait_ready()
            assert len(json.loads(asking.stdout.read())["token_ids"]) == 4
    assert asking.returncode == 0


class Told:
    """A link to a server that answers as listed, the last answer again and again."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def describe(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def hasty(monkeypatch):
    for name, seconds in {"LONGEST_S": 0.2, "LOOK_S": 0.01, "GONE_S": 0.1}.items():
        monkeypatch.setattr(loading_server, name, seconds)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ((Loading("still"),), Loading),
        ((Loading("still"), Unreachable("gone")), Unreachable),
        ((Unreachable("never there"),), Unreachable),
    ],
    ids=["it loads for too long", "it ends while it loads", "it is not there"],
)
def test_a_device_does_not_wait_for_ever(answers, error, hasty):
    with pytest.raises(error, match=str(answers[-1])):
        asyncio.run(loading_server.describe_when_loaded(Told(*answers)))


@pytest.mark.parametrize(("to_listen", "waits"), [(0.0, False), (60.0, True)])
def test_a_server_that_is_started_later_is_waited_for_by_those_who_serve(to_listen, waits, hasty, capsys):
    """`edge`, half a second before `serve`, ended."""
    nobody = Unreachable(f"no server answers: {NOTHING_LISTENS}; start one")
    told = Told(nobody, nobody, Loading("still"), "facts")
    describing = loading_server.describe_when_loaded(told, to_listen)
    if not waits:
        with pytest.raises(Unreachable):
            asyncio.run(describing)
        return
    assert asyncio.run(describing) == "facts"
    said = capsys.readouterr().err
    assert said.count("waiting 60 s for one") == 1 and "nothing listens there" in said


def test_a_device_bears_the_moment_in_which_the_server_listens_anew(hasty):
    told = Told(Loading("still"), Unreachable("between two ports"), "facts")
    assert asyncio.run(loading_server.describe_when_loaded(told)) == "facts"


async def test_a_server_that_loads_is_not_present():
    async with service.loading("127.0.0.1:0", None) as address:
        link = Link(Endpoint(address))
        present = link.presence()
        assert await anext(present) is False
        await link.close()
