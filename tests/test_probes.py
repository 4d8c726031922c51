"""Probes: alive, ready, and why not, at the HTTP API and at the metrics port of every kind of process."""

import asyncio
import contextlib
import os
import socket
import threading
import time

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lab.testbed.processes import Process, free_port
from opensled.core.errors import Loading
from opensled.metrics.exposition import MetricsPort
from opensled.metrics.registry import Metric
from opensled.net import probes as module
from opensled.net.probes import DRAINING, LIVE, READY, Probes
from tests.certificates import AUTHORITY, HERE, issued
from tests.fake_backend import FakeBackend, call
from tests.fake_target import _Text
from tests.http_serving import asking, http_serving
from tests.loops import block_until
from tests.replicas import api, until_ready
from tests.serving import serving
from tests.slow_start import DONE, PIPE
from tests.system import until
from verify_server.access.security import Tenants, Tls

EXAMPLE = Metric("example", "An example.", lambda: 7)
PATHS = (LIVE, "/health", *READY)


@pytest.fixture
def told():
    """Probes of a process that has no event loop, and the URL of their port."""
    probes = Probes()
    port = MetricsPort("127.0.0.1:0", [EXAMPLE], probes)
    yield probes, f"http://{port.address}"
    port.close()


def test_the_port_has_four_pages_and_no_other(told):
    probes, url = told
    probes.unready = lambda: ""
    assert "opensled:example 7.0" in httpx.get(f"{url}/metrics").text
    assert httpx.get(f"{url}{LIVE}").text == "alive\n"
    assert {httpx.get(url + path).text for path in READY} == {"ready\n"}
    for path in ("/", "/metrics/", "/favicon.ico", "/livez/x", "/status", "/v1/models"):
        reply = httpx.get(url + path)
        assert reply.status_code == 404 and "opensled:" not in reply.text and "/readyz" in reply.text


def test_until_it_is_ready_a_process_is_loading_and_then_it_says_why_not(told):
    probes, url = told
    for path in READY:
        reply = httpx.get(url + path)
        assert (reply.status_code, reply.text) == (503, f"{Loading.words}\n") and "loading" in reply.text
    assert httpx.get(url + LIVE).status_code == 200
    probes.unready = lambda: DRAINING
    assert httpx.get(f"{url}/readyz").text.startswith("draining")


async def test_an_event_loop_that_hangs_is_no_life(monkeypatch):
    monkeypatch.setattr(module, "STUCK_S", 0.2)
    release = threading.Event()

    probes = Probes(asyncio.get_running_loop())
    probes.unready = lambda: ""
    port = MetricsPort("127.0.0.1:0", [EXAMPLE], probes)
    url = f"http://{port.address}"
    try:
        alive = await asyncio.to_thread(httpx.get, url + LIVE)
        asked = asyncio.get_running_loop().run_in_executor(None, _while_hanging, url, release)
        await asyncio.sleep(0.01)
        release.wait(20)  # nothing else has a turn
        stuck = await asked
    finally:
        port.close()
    assert alive.status_code == 200
    assert [reply.status_code for reply in stuck] == [503, 503, 200]  # alive, ready, metrics
    assert "event loop has had no turn" in stuck[0].text


def _while_hanging(url, release):
    time.sleep(0.05)
    try:
        return [httpx.get(f"{url}{path}", timeout=20) for path in (LIVE, "/readyz", "/metrics")]
    finally:
        release.set()


def test_slow_clients_keep_no_probe_out(told):
    """Each of them has sent half a request; the oldest give way."""

    from opensled.metrics.exposition import MAX_CONNECTIONS

    probes, url = told
    probes.unready = lambda: ""
    host, _, port = url.removeprefix("http://").rpartition(":")
    slow = [socket.create_connection((host, int(port)), 10) for _ in range(2 * MAX_CONNECTIONS)]
    try:
        for one in slow:
            one.sendall(b"GET /livez HT")
        assert httpx.get(f"{url}{LIVE}", timeout=10).status_code == 200
        assert slow[0].recv(1000) == b""  # it was closed
    finally:
        for one in slow:
            one.close()


def test_the_api_answers_probes_without_a_key():
    backend = FakeBackend()
    for path in PATHS:
        assert call(backend, path, method="GET").status_code == 200
    backend.server_away = True
    codes = {path: call(backend, path, method="GET").status_code for path in PATHS}
    assert codes == {LIVE: 200, "/health": 200, "/readyz": 503, "/healthz": 503}
    assert call(backend, "/ready", method="GET").status_code == 404  # its earlier name


async def test_a_server_that_drains_says_so_and_not_that_it_is_away():
    async with http_serving() as (manager, _, address), asking(address) as client:
        manager.draining = True
        reply = await client.get("/readyz")
        assert reply.status_code == 503 and reply.json()["error"]["message"] == DRAINING
        assert "away" not in reply.text
        assert (await client.get("/livez")).status_code == 200


async def test_a_gateway_says_that_no_replica_serves_and_that_it_drains():
    async with api() as (one, address), asking(address) as client:
        assert "no replica" in (await client.get("/readyz")).json()["error"]["message"]
        assert one.serving.gateway.unready.startswith("no replica serves")
        await one.add("a", text=_Text())
        await until(lambda: not one.serving.gateway.unready)
        await until_ready(client)
        one.serving.gateway.draining = True
        assert (await client.get("/readyz")).json()["error"]["message"] == DRAINING


async def test_grpc_health_answers_over_tls_without_a_token():
    tls = Tls(issued(AUTHORITY, HERE))
    async with serving(Tenants((("secret-1", "alice"),)), tls) as (_, address):
        trusted = grpc.ssl_channel_credentials(AUTHORITY.cert_pem.bytes())
        async with grpc.aio.secure_channel(address, trusted) as channel:
            asked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert (await asked).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("verb", ["serve", "edge", "relay"])
def test_a_process_is_alive_while_it_loads_and_ready_afterwards(verb, tmp_path):
    """A device and a relay wait for the server, which loads until somebody writes into the pipe."""

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    listen, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    ports = ["--metrics", metrics]
    serve = ["serve", "--engine", "tests.slow_start:load", "--listen", listen]
    words = {
        "serve": [],
        "edge": ["edge", "--server", listen, "--drafter", "none", "--http", "127.0.0.1:0", *ports],
        "relay": [
            *f"relay --upstream {listen} --engine tests.fake_target:load --listen 127.0.0.1:0".split(),
            *ports,
        ],
    }[verb]
    environment = {PIPE: str(pipe)}
    with Process([*serve, *([] if words else ports)], isolated=True, environment=environment) as server:
        said = tmp_path / "said"
        if words:
            block_until(lambda: _listens(listen))  # where nothing listens, a command ends at once
        asked = Process(words, isolated=True, log=said) if words else server
        with asked:
            _until_probed(f"http://{metrics}{LIVE}", 200)
            loading = httpx.get(f"http://{metrics}/readyz")
            assert loading.status_code == 503 and "loading" in loading.text
            if words:  # it has heard so itself: a server's port is closed for a moment when it has loaded
                block_until(lambda: "the server is loading its model; waiting" in said.read_text())
            pipe.write_text(DONE)
            asked.wait_ready()
            _until_probed(f"http://{metrics}/readyz", 200)
            assert httpx.get(f"http://{metrics}/metrics").text.count("opensled:build_info{") == 1
            if verb == "edge":
                server.kill()
                assert "server is away" in _until_probed(f"http://{metrics}/readyz", 503).text
                assert httpx.get(f"http://{metrics}{LIVE}").status_code == 200


def _listens(address):
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def _until_probed(url, status):
    """The first answer with this status."""

    def probed():
        try:
            reply = httpx.get(url, timeout=20)
        except httpx.TransportError:
            return None
        return reply if reply.status_code == status else None

    return block_until(probed, 60)
