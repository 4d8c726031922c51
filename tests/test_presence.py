"""A device knows whether its server can be reached, says when that changes, and tells it to those who ask."""

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from edge_client.device.command import _watch_server
from edge_client.device.config import EdgeConfig
from edge_client.device.device_metrics import metrics
from edge_client.device.page_view import DeviceView
from edge_client.device.telemetry import Telemetry
from edge_client.link.bearer import watched_token
from edge_client.link.server_watch import FRESH_S
from http_api.app import build_app
from http_api.guard import Access
from lab.testbed.processes import free_port
from opensled.cli import paired
from opensled.core.errors import Unauthorized
from opensled.core.files import write_whole
from tests.devices import device_on, read
from tests.fake_backend import FakeBackend
from tests.serving import serving
from tests.system import until
from verify_server.access.security import TenantLimits, watched_tenants


@asynccontextmanager
async def asking(device, access=Access(), figures=()):
    transport = httpx.ASGITransport(build_app(device, access, metrics=figures))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def told(caplog, of: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if of in record.getMessage()]


async def test_a_server_that_goes_and_comes_back(caplog):
    port = free_port()
    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        first = serving(port=port)
        _, address = await first.__aenter__()
        device = await stack.enter_async_context(device_on(address))
        await stack.enter_async_context(_watch_server(device))
        client = await stack.enter_async_context(asking(device))
        assert (await client.get("/readyz")).json() == {"status": "ready", "server": "reachable"}
        await first.__aexit__(None, None, None)
        await until(lambda: device.server_away)
        ready, health = await client.get("/readyz"), await client.get("/health")
        assert ready.status_code == 503 and ready.headers["retry-after"]
        assert health.status_code == 200 and health.json()["server"] == "away"
        await stack.enter_async_context(serving(port=port))
        await until(lambda: not device.server_away, 20)
        assert (await client.get("/readyz")).status_code == 200
        said = told(caplog, "the server")
    assert said == [f"the server 127.0.0.1:{port} is {state}" for state in ("away", "back")]


async def test_a_revoked_device_is_not_ready_and_says_so(caplog, monkeypatch, tmp_path):
    """It notices without a question, and by a question at once; with a new token it is ready again."""
    monkeypatch.setattr("edge_client.link.server_watch.EVERY_S", 0.05)
    file = tmp_path / "tokens"

    def write(text):
        file.write_text(text)
        file.chmod(0o600)

    caplog.set_level(logging.WARNING)
    write("secret-1 kitchen\n")
    tenants = watched_tenants(file, TenantLimits(), may_be_empty=True)
    async with (
        serving(tenants) as (_, address),
        device_on(address, token="secret-1") as device,
        _watch_server(device),
        asking(device) as client,
    ):
        await read(device)
        assert (await client.get("/readyz")).status_code == 200 and not device.refusal
        write("# nobody\n")
        await until(lambda: device.refusal, 20)
        ready = await client.get("/readyz")
        assert ready.status_code == 503 and "pair this device again" in ready.json()["error"]["message"]
        assert (await client.get("/health")).json()["server"] == "refuses"
        look = DeviceView(device, EdgeConfig()).look()
        assert "pair this device again" in look["server"]["refusal"] and not look["server"]["away"]
        with pytest.raises(Unauthorized):
            await read(device)
        write("secret-1 kitchen\n")
        await until(lambda: not device.refusal, 20)
        assert (await client.get("/readyz")).status_code == 200
        said = told(caplog, "this device")
    assert len(said) == 2 and said[1] == "the server lets this device in again"
    assert said[0].startswith(
        f"the server at {address} refuses this device, whose key was revoked or replaced: "
    )


async def test_a_revoked_device_does_not_hammer_its_server(tmp_path):
    """An app asks it on and on; a new token in its file counts all the same."""
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    write_whole(tokens, b"secret-1 kitchen\n", private=True)
    write_whole(token, b"secret-1\n", private=True)
    tenants = watched_tenants(tokens, TenantLimits(), may_be_empty=True)
    own = watched_token(str(token))
    async with (
        serving(tenants) as (manager, address),
        device_on(address, token="secret-1", tokens=own) as device,
    ):
        await read(device)
        write_whole(tokens, b"secret-2 kitchen\n", private=True)
        await until(lambda: tenants.file.current(at_once=True).by_token == (("secret-2", "kitchen"),))
        began = time.monotonic()
        for _ in range(200):
            with pytest.raises(Unauthorized, match="pair this device again"):
                await read(device)
        # One more where gRPC lost the first one's status: a call that ends while it is written to
        assert manager.stats.refused["unauthorized"] <= 2 + (time.monotonic() - began) / FRESH_S
        write_whole(token, b"secret-2\n", private=True)
        own.current(at_once=True)
        await read(device)
        assert not device.refusal


def test_a_token_of_another_home_never_meets_this_homes_server(tmp_path, monkeypatch, caplog):
    """The device is paired with another home while it runs: it keeps its token, and says what to do."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = paired.keep("hub:7411", "authority one", "token-1", name="kitchen")
    own = watched_token(str(folder / "token"))
    paired.keep("hub:7411", "authority one", "token-2")
    assert own.current(at_once=True) == "token-2", "the same home, paired again"
    paired.keep("other:7411", "authority two", "token-3")
    with caplog.at_level(logging.WARNING):
        assert own.current(at_once=True) == "token-2"
    assert "paired with another server meanwhile: restart it" in caplog.text and "token-3" not in caplog.text
    assert watched_token(str(folder / "token")).latest == "token-3"


async def test_metrics_are_told_on_loopback_only():
    device = FakeBackend()
    device.telemetry, device.drafters_busy, device.parallel = Telemetry(), 0, 1
    device.drafter_name = "lookup"
    figures = metrics(device)
    async with asking(device, Access(local=True), figures) as client:
        page = await client.get("/metrics")
        assert page.status_code == 200 and "opensled:request_success_total" in page.text
    async with asking(device, figures=figures) as client:
        assert (await client.get("/metrics")).status_code == 404
    async with asking(device, Access(local=True, keys=("key",)), figures) as client:
        assert (await client.get("/metrics")).status_code == 401
