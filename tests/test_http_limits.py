"""What one HTTP client of a server may send and hold: no more than over gRPC, and nobody else loses a word."""

import asyncio
import json
import socket
import threading
import time
from contextlib import AsyncExitStack

import pytest

from http_api.bodies import MAX_CHAT_BODY
from tests.fake_target import cycle
from tests.http_serving import HI, asking, fake_engine, http_serving, raw, said
from tests.loops import cancelled
from tests.system import until
from verify_server.access.client_limits import ClientLimits, Rate
from verify_server.admission.session_manager import SessionLimits

QUICK = ClientLimits(first_s=0.3, farewell_s=0.2)
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
DEEP = "[" * 100_000
LONG = {**HI, "max_tokens": 3900, "stream": True, "n": 4, "logprobs": 5}
MANY = SessionLimits(max_sessions=8, linger=0.1)
WIDE = {"num_blocks": 4 * 1100, "context_length": 4000}


def posted(body):
    content = json.dumps(body).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(content) + content


@pytest.mark.parametrize(
    "start",
    [b"POST /v1/comp", HEAD + b"x-a: b\r\n", HEAD + b"content-length: 9999\r\n\r\n{"],
    ids=["first line", "headers", "body"],
)
async def test_a_request_that_does_not_arrive_ends_its_connection(start):
    async with (
        http_serving(client_limits=QUICK) as (manager, _, address),
        raw(address) as (reader, writer),
    ):
        writer.write(start)
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 408 ")
        assert not manager.stats.opened["new"]
        async with asking(address) as client:
            assert await said(client)


async def test_a_reader_who_takes_nothing_gives_the_place_to_another():
    options = {"client_limits": QUICK, "limits": MANY, "engine": fake_engine(**WIDE)}
    async with http_serving(**options) as (manager, _, address), raw(address, 2048) as (_, writer):
        writer.write(posted(LONG))
        await until(lambda: len(manager.remembered) == 4)
        await until(lambda: not manager.remembered, seconds=20)
        async with asking(address) as client:
            assert await said(client)


async def test_connections_of_one_address_are_counted():
    limits = ClientLimits(streams=3)
    async with http_serving(client_limits=limits) as (_, _, address):
        async with raw(address), raw(address), raw(address), raw(address) as (reader, _):
            assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 429 ")
        async with asking(address) as client:
            await answered(lambda: client.get("/health"), 200)  # the connections before are gone soon


async def test_what_is_sent_to_a_closing_connection_costs_nobody_the_answer():
    """A socket that is closed on bytes which nobody has read resets the connection."""
    async with http_serving(client_limits=ClientLimits(streams=1)) as (_, _, address), raw(address):
        host, port = address.split(":")
        own = socket.create_connection((host, int(port)), timeout=20)
        own.sendall(posted(HI))  # before the server, in this very thread, has seen the connection
        reader, writer = await asyncio.open_connection(sock=own)
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 429 ")
        writer.close()


async def answered(ask, status):
    """The first answer to `ask()` with this status."""
    deadline = time.monotonic() + 20
    while (response := await ask()).status_code != status:
        assert time.monotonic() < deadline
    return response


def ask_hi(client):
    return lambda: client.post("/v1/completions", json=HI)


async def test_bodies_that_arrive_are_counted_as_streams_that_open():
    limits = ClientLimits(opening=64)
    async with http_serving(client_limits=limits, engine=fake_engine()) as (manager, _, address):
        waiting = [raw(address) for _ in range(64)]
        ends = [await one.__aenter__() for one in waiting]
        for _, writer in ends:
            writer.write(HEAD + b"content-length: 99\r\n\r\n{")
        async with asking(address) as client:
            refused = await answered(ask_hi(client), 429)
            assert refused.headers["Retry-After"]
            assert refused.json()["error"]["type"] == "rate_limit_error" and manager.stats.limited["streams"]
            for one in waiting:
                await one.__aexit__(None, None, None)
            await answered(ask_hi(client), 200)


async def test_large_bodies_may_not_fill_the_memory_together():
    limits = ClientLimits(opening_bytes=8 << 20)
    async with http_serving(client_limits=limits) as (_, _, address):
        held = 5  # connections with 2.5 MiB each, whose last byte is missing
        ends = [raw(address) for _ in range(held)]
        size = 5 << 19

        async def send(end):
            reader, writer = await end.__aenter__()
            writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + b" " * (size - 1))
            return await asyncio.wait_for(reader.read(200), 20)

        answers = [asyncio.ensure_future(send(end)) for end in ends]
        done, _ = await asyncio.wait(answers, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert done and next(iter(done)).result().startswith(b"HTTP/1.1 429 ")
        await cancelled(*answers)
        for end in ends:
            await end.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b" " * (MAX_CHAT_BODY + 1), 413),
        (DEEP.encode(), 400),
        (b'{"prompt": ' + DEEP.encode() + b"}", 400),
        (b'{"prompt": ' + b"9" * 5000 + b"}", 400),
        (json.dumps({"prompt": "x" * (1 << 20)}).encode(), 400),
    ],
    ids=["huge", "deep", "deep field", "digits", "a message beyond the limit"],
)
async def test_bodies_that_no_answer_follows(content, status):
    async with http_serving() as (manager, _, address), asking(address) as client:
        kind = {"content-type": "application/json"}
        refused = await client.post("/v1/completions", content=content, headers=kind)
        assert refused.status_code == status and refused.json()["error"]["message"]
        assert not manager.stats.opened["new"]
        assert await said(client)


async def test_requests_beyond_the_rate_wait_their_turn():
    limits = ClientLimits(calls=Rate(5, 4))
    async with http_serving(client_limits=limits) as (manager, _, address), asking(address) as client:
        began = time.monotonic()
        for _ in range(10):
            await client.get("/v1/models")
        assert time.monotonic() - began > 0.2 and manager.stats.limited["calls"] >= 4
        began, limited = time.monotonic(), manager.stats.limited["calls"]
        await said(client, n=8)  # eight answers are eight calls
        assert manager.stats.limited["calls"] - limited >= 7 and time.monotonic() - began > 0.3


async def test_a_large_body_is_paid_for_before_it_is_read():
    limits = ClientLimits(bytes=Rate(1 << 20, 1 << 20))
    async with http_serving(client_limits=limits) as (manager, _, address), asking(address) as client:
        kind = {"content-type": "application/json"}
        began = time.monotonic()
        for _ in range(2):
            await client.post("/v1/completions", content=b" " * (3 << 19), headers=kind)
        assert manager.stats.limited["bytes"] and time.monotonic() - began > 0.5


async def test_who_is_refused_again_and_again_loses_the_connection():
    limits = ClientLimits(refusals=Rate(1, 5))
    async with (
        http_serving(client_limits=limits) as (manager, _, address),
        raw(address) as (reader, writer),
    ):
        ask = b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n"
        for _ in range(100):
            writer.write(ask)
        answers = await asyncio.wait_for(reader.read(), 20)
        assert answers.count(b"HTTP/1.1 403 ") <= 100 and manager.stats.limited["refusals"]


async def test_streams_of_a_tenant_hold_for_answers_too():
    """The answers of one request wait for each other's places; another request is refused meanwhile."""
    limits = SessionLimits(max_sessions=2, linger=0.1)
    async with (
        http_serving(limits=limits, engine=fake_engine(**WIDE)) as (manager, _, address),
        asking(address) as client,
    ):
        asked = asyncio.ensure_future(client.post("/v1/completions", json={**HI, "n": 3, "max_tokens": 100}))
        await until(lambda: len(manager.remembered) == 2)
        assert (await client.post("/v1/completions", json=HI)).status_code == 429
        most = 0
        while not asked.done():
            most = max(most, len(manager.remembered))
            await asyncio.sleep(0)
        assert most == 2 and len(asked.result().json()["choices"]) == 3
        await until(lambda: not manager.remembered)
        assert await said(client, n=2)


async def test_no_answer_is_left_when_the_server_stops():
    """The end of a stream that is cut by the end of the server is an error, not silence."""
    gate = threading.Event()  # no answer has begun
    engine = fake_engine(**WIDE, target=lambda context: gate.wait(20) and cycle(context))
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(http_serving(limits=MANY, engine=engine))
        async with asking(place[2]) as client:
            reading = asyncio.ensure_future(client.post("/v1/completions", json={**LONG, "n": 1}))
            reading.add_done_callback(lambda _: gate.set())
            await until(lambda: place[0].remembered)
            await stack.aclose()
            text = (await asyncio.wait_for(reading, 20)).text
        assert '"error"' in text and "shutting down" in text
