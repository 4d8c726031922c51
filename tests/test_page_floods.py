"""Hundreds of pages that watch, and some that never read: others get their answers, and memory stays bounded."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from http_api.app import build_app
from http_api.guard import Access
from http_api.http_connection import ConnectionLimits
from http_api.listening import listen
from http_api.page.views import MAX_WATCHERS
from http_api.server import ApiServer
from opensled.core.messages import SamplingParams
from tests.ended import used_mb
from tests.fake_backend import WORDS, FakeBackend, chat
from tests.http_serving import asking, fake_engine, http_serving, raw, said, words
from tests.page_world import EVENTS, SWITCH, CountingView, quick_looks
from tests.serving import finish, linked
from tests.system import until
from verify_server.access.client_limits import ClientLimits
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.fleet import MAX_ROWS
from verify_server.round.budget import MAX_DEVICES

WATCH = f"GET {EVENTS} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
FLOOD = 300  # connections
UNREAD_S = 0.5
MAX_MB = 60  # of growth: what Linux keeps for unread answers is not the process's


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    quick_looks(monkeypatch)


class WideView(CountingView):
    """A look of 150 KB, as of a server with hundreds of devices."""

    def look(self):
        return {**super().look(), "devices": ["a" * 300] * MAX_ROWS}


@asynccontextmanager
async def device_page(view, backend):
    """The API of a device on a real port, which gives up readers after UNREAD_S seconds; yields its address."""
    ending = asyncio.Event()
    with listen("127.0.0.1:0") as listener:
        app = build_app(backend, Access(local=True), ending, view=view)
        server = ApiServer(app, ending, limits=ConnectionLimits(unread=UNREAD_S))
        running = asyncio.ensure_future(server.run(listener))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            server.stop()
            await running


async def flood(stack, address, count=FLOOD, buffer=0):
    """So many connections that ask for looks at once; `buffer`: bytes that each takes before it is read."""
    ends = [await stack.enter_async_context(raw(address, buffer)) for _ in range(count)]
    for _, writer in ends:
        writer.write(WATCH)
    return ends


async def statuses(ends):
    """How many were answered with which status, by the first line of each."""
    first = await asyncio.gather(*(asyncio.wait_for(reader.readline(), 20) for reader, _ in ends))
    return Counter(int(line.split()[1]) for line in first)


@pytest.mark.timed
async def test_more_pages_than_may_watch_leave_an_answer_alone():
    view, backend = CountingView(), FakeBackend()
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(device_page(view, backend))
        client = await stack.enter_async_context(asking(address))
        ends = await flood(stack, address)
        began = time.monotonic()
        for _ in range(10):
            told = (await client.post("/v1/chat/completions", json=chat())).json()
            assert told["choices"][0]["message"]["content"] == "".join(WORDS)
        assert time.monotonic() - began < 5
        assert await statuses(ends) == {200: MAX_WATCHERS, 429: FLOOD - MAX_WATCHERS}
        assert view.watchers == MAX_WATCHERS


async def test_pages_that_never_read_lose_their_places_and_fill_no_memory():
    view, backend = WideView(), FakeBackend()
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(device_page(view, backend))
        client = await stack.enter_async_context(asking(address))
        before, most = used_mb(), 0.0
        await flood(stack, address, buffer=2048)
        await until(lambda: view.watchers == MAX_WATCHERS)
        looks: list[int] = []
        waiting = asyncio.ensure_future(_looks_of_a_reader(address, looks))
        deadline = time.monotonic() + 20
        while not looks:  # a place becomes free once the deaf ones are given up
            assert time.monotonic() < deadline, "the deaf keep their places"
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            most = max(most, used_mb() - before)
        await waiting
        assert most < MAX_MB, f"{most:.0f} MB"
        assert view.looks < 40 * MAX_WATCHERS  # nobody looks for them while they do not read


async def _looks_of_a_reader(address, looks):
    """Asks until it is let in, and takes three looks."""
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        while len(looks) < 3:
            async with client.stream("GET", EVENTS) as response:
                if response.status_code == 429:
                    await response.aread()
                    await asyncio.sleep(0.05)
                    continue
                async for line in response.aiter_lines():
                    if line:
                        looks.append(len(line))
                    if len(looks) == 3:
                        break


@pytest.mark.timed
async def test_a_watched_server_of_many_devices_answers_both_kinds_of_clients():
    """The page of a real server, with as many devices as it remembers; half of the readers take nothing."""
    options = {
        "client_limits": ClientLimits(farewell_s=UNREAD_S),
        "limits": SessionLimits(max_sessions=8, linger=UNREAD_S),
        "engine": fake_engine(),
    }
    async with AsyncExitStack() as stack:
        manager, grpc, address = await stack.enter_async_context(http_serving(**options))
        for number in range(MAX_DEVICES):
            manager.records.of("local", f"device {number}")
        client = await stack.enter_async_context(asking(address))
        link = await stack.enter_async_context(linked(grpc))
        device = (await finish(link))[1]
        before = used_mb()
        await flood(stack, address, MAX_WATCHERS, buffer=2048)
        await flood(stack, address, 60)
        began = time.monotonic()
        for number in range(8):
            assert await said(client) == words("Hi", 12)
            assert (await finish(link))[1] == device
            off = {"tenant": "local", "device": f"device {number + 9}", "drafting": False}
            assert (await client.post(SWITCH, json=off)).status_code == 200
        assert time.monotonic() - began < 15 and used_mb() - before < MAX_MB
        await until(lambda: not manager.remembered)


async def test_switches_without_end_are_waited_for_like_any_request():
    """`client-calls` holds for them, so that they take nobody's time."""
    async with http_serving() as (manager, grpc, address), linked(grpc) as link, asking(address) as client:
        manager.records.of("local", "kitchen")
        over = asyncio.Event()

        async def switching():
            count = 0
            while not over.is_set():
                body = {"tenant": "local", "device": "kitchen", "drafting": bool(count % 2)}
                assert (await client.post(SWITCH, json=body)).status_code == 200
                count += 1
            return count

        crowd = [asyncio.ensure_future(switching()) for _ in range(16)]
        params = SamplingParams(temperature=0, max_tokens=20)
        for _ in range(5):
            assert len((await finish(link))[1]) == params.max_tokens
        over.set()
        assert sum(await asyncio.gather(*crowd)) > 16
        assert len(manager.records.latest()) == 2
