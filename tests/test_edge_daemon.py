"""`opensled edge` as a daemon: its socket, and the end of the answers it is giving when it is told to stop."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from http_api import server as api_server
from http_api import server as module
from http_api.app import build_app
from http_api.http_connection import PEER, ConnectionLimits
from http_api.listening import listen
from http_api.server import ApiServer
from opensled.core.answer import Chunk
from tests.fake_backend import STATS, FakeBackend, chat, events, refusal


def test_chunks_of_a_stream_do_not_wait_for_acknowledgements():
    """Nagle's algorithm would hold the second one back for 40 ms."""
    with listen("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def at_once(server):
    """What a second signal does."""
    server.stop()
    server.stop()


def after_a_while(server):
    server.stop()


def stopped_midway(backend, stop, **fields):
    """The response to a request during which the daemon is told to stop; `ending` as it is then."""
    ending = asyncio.Event()

    async def scenario(listener):
        server = ApiServer(build_app(backend, ending=ending), ending)
        running = asyncio.ensure_future(server.run(listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=60) as client:
            asking = asyncio.ensure_future(client.post(url, json=chat(**fields)))
            while not backend.tasks:
                await asyncio.sleep(0)
            stop(server)
            response = await asking
        await asyncio.wait_for(running, 20)
        return response

    with listen("127.0.0.1:0") as listener:
        return asyncio.run(scenario(listener)), ending.is_set()


@pytest.mark.parametrize("stop", [at_once, after_a_while])
@pytest.mark.parametrize("streamed", [True, False])
def test_answers_that_do_not_finish_end_by_an_error_and_let_the_server_know(stop, streamed, monkeypatch):
    """A cut connection would tell the reader nothing, and the server would keep the sequence for a minute."""
    monkeypatch.setattr(api_server, "GRACE", 0.05 if stop is after_a_while else 60.0)
    backend = FakeBackend(endless=True)
    response, _ = stopped_midway(backend, stop, stream=streamed)
    assert backend.closed == 1
    if streamed:
        last = response.text.split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unreachable"
    else:
        assert refusal(response, 503)["code"] == "unreachable" and response.headers["retry-after"] == "1"


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_can_be_cut_ends_with_the_text_so_far(streamed):
    """Its last chunk has what was held back, and nothing comes behind it."""

    class Cut(FakeBackend):
        async def _chunks(self, number, top):
            yield Chunk("Hel", (1,), cut=lambda: Chunk("", ()).finish("length", STATS, "", "lo"))
            await asyncio.Event().wait()

    response, _ = stopped_midway(Cut(), at_once, stream=streamed)
    if streamed:
        *chunks, done = events(response)
        choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
        assert "".join(each["delta"].get("content") or "" for each in choices) == "Hello" and done == "[DONE]"
    else:
        choices = response.json()["choices"]
        assert choices[0]["message"]["content"] == "Hello"
    assert choices[-1]["finish_reason"] == "length" and response.status_code == 200


def test_an_answer_that_finishes_in_time_is_whole():
    response, ended = stopped_midway(FakeBackend(words=("Hello",) * 300), after_a_while)
    assert response.json()["choices"][0]["message"]["content"] == "Hello" * 300 and not ended


# -- requests and connections that stall --------------------------------------------------------------------------


PATIENCE = 0.4  # seconds
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
WHOLE = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@asynccontextmanager
async def serving(backend):
    """An API that gives requests PATIENCE seconds; yields its port."""
    ending = asyncio.Event()
    with listen("127.0.0.1:0") as listener:
        server = ApiServer(build_app(backend, ending=ending), ending, limits=ConnectionLimits(PATIENCE))
        running = asyncio.ensure_future(server.run(listener))
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop()
            await running


async def drip(port, start, each):
    """Send `start`, then `each` now and then, until the server ends it; returns its answer, b"" = it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    deadline = time.monotonic() + 50 * PATIENCE
    writer.write(start)
    reading = asyncio.ensure_future(reader.read())
    while not reading.done() and time.monotonic() < deadline:
        writer.write(each)
        await asyncio.wait({reading}, timeout=PATIENCE / 10)
    writer.close()
    return await reading if reading.done() else b""


@pytest.mark.parametrize(
    ("start", "each"),
    [
        (b"GET /health HT", b"T"),
        (HEAD, b"x-a: b\r\n"),
        (HEAD + b"content-length: 10000\r\n\r\n{", b" "),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (WHOLE + b"GET /he", b"a"),  # the next one on a connection
    ],
    ids=["first line", "headers", "body", "chunks", "second request"],
)
async def test_a_request_that_does_not_arrive_ends_its_connection(start, each):
    backend = FakeBackend()
    async with serving(backend) as port:
        assert b"HTTP/1.1 408 " in await drip(port, start, each)
        assert not backend.asked


@pytest.mark.parametrize("start", [b"", WHOLE], ids=["no request", "one request"])
async def test_an_idle_connection_outlives_those_of_proxies_and_then_ends_without_a_word(monkeypatch, start):
    assert module.KEEP_ALIVE > 600  # of Google's balancers; nginx, HAProxy and AWS keep 60 s
    monkeypatch.setattr(module, "KEEP_ALIVE", 5 * PATIENCE)
    async with serving(FakeBackend()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        began, answer = time.monotonic(), await reader.read()
        assert time.monotonic() - began > 3 * PATIENCE
        assert answer.startswith(b"HTTP/1.1 200 ") if start else answer == b""
        writer.close()


async def test_an_answer_may_take_longer_than_its_request():
    backend = FakeBackend(endless=True)
    async with serving(backend) as port, httpx.AsyncClient(timeout=60) as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with client.stream("POST", url, json=chat(stream=True)) as response:
            began = time.monotonic()
            async for _ in response.aiter_lines():
                if time.monotonic() - began > 2 * PATIENCE:
                    break
        assert response.status_code == 200


def cpu_seconds(pid):
    """Of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_without_file_descriptors_the_api_waits_and_comes_back():
    """It says so once a second, uses no CPU meanwhile, and answers when there are descriptors again."""
    command = [sys.executable, "-m", "tests.starved_api", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            address = ("127.0.0.1", int(child.stdout.readline()))
            with ExitStack() as held:
                for _ in range(60):
                    held.enter_context(socket.create_connection(address, timeout=10))
                lines = [json.loads(child.stderr.readline())]
                before = cpu_seconds(child.pid)
                lines += [json.loads(child.stderr.readline()) for _ in range(3)]
                used = cpu_seconds(child.pid) - before
                assert all("no new connection can be accepted" in line["message"] for line in lines)
                first, *_, last = [datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S.%fZ") for line in lines]
                seconds = (last - first).total_seconds()
                assert seconds > 2.5 and used < 0.2 * seconds
            reply = httpx.get(f"http://127.0.0.1:{address[1]}/health", timeout=60)
            assert reply.json()["status"] == "ok"
        finally:
            child.kill()


async def test_requests_that_are_reset_before_they_are_taken_go_nowhere():
    """Their connections have no address any more, to which limits and refusals could be counted."""
    ending, hosts = asyncio.Event(), []

    async def app(scope, receive, send):
        hosts.append(scope[PEER].host)
        await PlainTextResponse("")(scope, receive, send)

    with listen("127.0.0.1:0") as listener:
        server, name = ApiServer(app, ending, limits=ConnectionLimits(PATIENCE)), listener.getsockname()
        for _ in range(20):
            with socket.create_connection(name) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.sendall(WHOLE)
        running = asyncio.ensure_future(server.run(listener))
        async with httpx.AsyncClient(timeout=60) as client:
            assert (await client.get(f"http://127.0.0.1:{name[1]}/health")).status_code == 200
        server.stop()
        await running
    assert hosts == ["127.0.0.1"]
