"""A real server over a fake target with its own HTTP API, and ways to ask it."""

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx

from opensled.text.tokenizer import TargetTokenizer
from tests.fake_target import _Text, cycle
from tests.fakes import FakeEngine
from tests.serving import serving
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.fleet import FleetView
from verify_server.front.http_front import http_front
from verify_server.front.sequences import OwnSequences
from verify_server.front.server_metrics import metrics
from verify_server.options.serve_config import ServeConfig

HI = {"prompt": "Hi", "temperature": 0, "max_tokens": 12}
CONFIG = ServeConfig(http="127.0.0.1:0", http_wait=0)


def fake_engine(**options):
    return FakeEngine(**{"num_blocks": 300, "target": cycle, **options})


@asynccontextmanager
async def http_serving(config=CONFIG, figures=(), **options):
    """Yields (manager, gRPC address, HTTP address); `options`: of `tests.serving.serving`."""
    found = []

    @asynccontextmanager
    async def beside(service, manager):
        view = FleetView(figures or metrics(manager), manager)
        async with http_front(config, service.clients.limits, manager.limits.linger) as front:
            front.open(OwnSequences(service, manager), figures, view)
            found.append(front.address)
            yield

    usual = {"engine": fake_engine(), "text": _Text(), "limits": SessionLimits(max_sessions=8, linger=0.2)}
    async with serving(beside=beside, **{**usual, **options}) as (manager, address):
        yield manager, address, found[0]


@asynccontextmanager
async def asking(address, key=""):
    """An HTTP client of the server there."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers, timeout=60) as client:
        yield client


async def said(client, **fields):
    """The text of a completion."""
    response = await client.post("/v1/completions", json={**HI, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


TWO = Tenants((("token-a", "a"), ("token-b", "b")), default=TenantLimits(max_sessions=2))


def of_tenants(linger=60.0):
    return {"tenants": TWO, "limits": SessionLimits(max_sessions=8, linger=linger, tenants=TWO)}


def words(prompt, count):
    """What the fake target writes after a text."""
    text = _Text()
    tokens = list(text.encode(prompt))
    for _ in range(count):
        tokens.append(cycle(tokens))
    return TargetTokenizer(text.tokenizer_json).decode(tokens[-count:])


@asynccontextmanager
async def raw(address, buffer=0):
    """A bare connection; `buffer`: bytes that it takes before it is read, 0 = usual."""
    host, port = address.split(":")
    own = socket.socket()
    if buffer:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    own.setblocking(False)
    await asyncio.get_running_loop().sock_connect(own, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=own, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.close()
