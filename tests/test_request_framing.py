"""Where a request ends: what programs in front of an API may read otherwise than it does is refused, or closes the
connection (RFC 9112). Else the body of one client would be read as a request of another one (request smuggling).
"""

import asyncio
import json
import logging
from contextlib import asynccontextmanager

import pytest

from http_api.app import build_app
from http_api.listening import listen
from http_api.server import ApiServer
from lab.testbed.processes import free_port
from opensled.metrics.registry import metrics_port
from tests.fake_backend import FakeBackend
from tests.http_serving import HI, http_serving

BODY = json.dumps(HI).encode()
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)


def posted(headers: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
    start = b"POST /v1/completions HTTP/" + version
    return start + b"\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" + headers + b"\r\n" + body


def chunk(content: bytes, size: bytes = b"") -> bytes:
    return (size or b"%x" % len(content)) + b"\r\n" + content + b"\r\n"


ALL = chunk(BODY) + b"0\r\n\r\n"
REFUSED = {
    "both, the length to the end of the chunks": posted(b"content-length: %d\r\n" % len(ALL) + CHUNKED, ALL),
    "both, a length that hides a request": posted(CHUNKED + b"content-length: 4\r\n", ALL),
    "both, a length of zero": posted(b"content-length: 0\r\n" + CHUNKED, ALL),
    "both, in HTTP/1.0": posted(LENGTH + CHUNKED, ALL, b"1.0"),
    "two lengths": posted(LENGTH + b"content-length: 0\r\n", BODY),
    "two lengths in one line": posted(b"content-length: %d, 0\r\n" % len(BODY), BODY),
    "a length with a sign": posted(b"content-length: +%d\r\n" % len(BODY), BODY),
    "a length below zero": posted(b"content-length: -1\r\n", BODY),
    "a length in hexadecimal": posted(b"content-length: 0x%x\r\n" % len(BODY), BODY),
    "a length with an underscore": posted(b"content-length: 1_0\r\n", BODY),
    "an empty length": posted(b"content-length: \r\n", BODY),
    "a space before the colon": posted(b"content-length : %d\r\n" % len(BODY), BODY),
    "a space before the colon of the coding": posted(b"transfer-encoding : chunked\r\n", ALL),
    "a coding that is not known": posted(b"transfer-encoding: xchunked\r\n", ALL),
    "codings in a list": posted(b"transfer-encoding: chunked, identity\r\n", ALL),
    "two codings": posted(CHUNKED + CHUNKED, ALL),
    "a coding behind a vertical tab": posted(b"transfer-encoding: \x0bchunked\r\n", ALL),
    "a header without a colon": posted(LENGTH + b"content\r\n", BODY),
    "a null in a header": posted(LENGTH + b"x-a: b\0c\r\n", BODY),
    "a lone CR in a header": posted(LENGTH + b"x-a: b\rtransfer-encoding: chunked\r\n", BODY),
    "a fold before the first header": b"GET / HTTP/1.1\r\n host: 127.0.0.1\r\n\r\n",
    "headers of 66 KB": posted(b"cookie: a=%s\r\n" % (b"x" * 66_000) + LENGTH, BODY),
    "many headers of 66 KB": posted(b"".join(b"x%05d:\r\n" % each for each in range(7_333)) + LENGTH, BODY),
    "a path of 66 KB": b"GET /%s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % (b"x" * 66_000),
    "two hosts": posted(b"host: 127.0.0.2\r\n" + LENGTH, BODY),
    "a chunk with a sign": posted(CHUNKED, chunk(BODY, b"+%x" % len(BODY)) + b"0\r\n\r\n"),
    "a chunk below zero": posted(CHUNKED, chunk(BODY, b"-1") + b"0\r\n\r\n"),
    "a chunk with a prefix": posted(CHUNKED, chunk(BODY, b"0x%x" % len(BODY)) + b"0\r\n\r\n"),
    "a chunk without a size": posted(CHUNKED, b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size of 40 digits": posted(CHUNKED, chunk(BODY, b"f" * 40) + b"0\r\n\r\n"),
    "a space before the size": posted(CHUNKED, chunk(BODY, b" %x" % len(BODY)) + b"0\r\n\r\n"),
    "a chunk that is longer than its size": posted(
        CHUNKED, chunk(BODY + b"XX", b"%x" % len(BODY)) + b"0\r\n\r\n"
    ),
}
# What RFC 9112 lets a server read as it is meant: a fold as a space (5.2), a lone LF as the end of a line (2.2), a
# length that is told twice (6.3).
TAKEN = {
    "a length": posted(LENGTH, BODY),
    "chunks": posted(CHUNKED, ALL),
    "headers of 60 KB": posted(b"cookie: a=%s\r\n" % (b"x" * 60_000) + LENGTH, BODY),
    "a coding in capitals": posted(b"Transfer-Encoding: CHUNKED\r\n", ALL),
    "the same length twice": posted(LENGTH + LENGTH, BODY),
    "a fold": posted(LENGTH + b"x-a: b\r\n c\r\n", BODY),
    "lines that end by LF": posted(LENGTH, b"").replace(b"\r\n", b"\n") + BODY,
    "an upgrade that is not taken": posted(LENGTH + b"connection: Upgrade\r\nupgrade: h2c\r\n", BODY),
    "a chunk with an extension": posted(CHUNKED, chunk(BODY, b"%x;a=b" % len(BODY)) + b"0\r\n\r\n"),
}


@asynccontextmanager
async def server_api():
    """The address of a server's own API, and how many answers were asked for."""
    async with http_serving() as (manager, _, address):
        yield address, lambda: manager.stats.opened["new"]


@asynccontextmanager
async def device_api():
    ending, backend = asyncio.Event(), FakeBackend()
    with listen("127.0.0.1:0") as listener:
        async with ApiServer(build_app(backend, ending=ending), ending).serving(listener):
            yield f"127.0.0.1:{listener.getsockname()[1]}", lambda: len(backend.tasks)


async def answers(address: str, sent: bytes) -> bytes:
    """All that comes back for it, until the connection is closed."""
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


APIS = pytest.mark.parametrize("api", [server_api, device_api])


@APIS
async def test_what_ends_in_two_ways_is_refused_with_all_that_follows(api, caplog):
    caplog.set_level(logging.ERROR)
    async with api() as (address, asked):
        for kind, sent in REFUSED.items():
            got = await answers(address, sent + SMUGGLED)
            assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), (kind, got)
            assert got.count(b"HTTP/1.1 ") == 1, f"{kind}: what follows is answered"
        assert asked() == 0
    assert not caplog.records, "no traceback in the log"


@APIS
async def test_the_cause_is_named(api):
    async with api() as (address, _):
        got = await answers(address, REFUSED["both, a length of zero"])
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        assert "Content-Length or Transfer-Encoding, not both" in json.loads(body)["error"]["message"]


@APIS
async def test_what_ends_in_one_way_is_taken_and_the_next_one_too(api, caplog):
    async with api() as (address, asked):
        for kind, sent in TAKEN.items():
            got = await answers(
                address, sent + SMUGGLED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
            )
            assert got.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 404 " in got, (kind, got)
        assert asked() == len(TAKEN) and not [each for each in caplog.records if "upgrade" in each.message]


@APIS
async def test_a_bad_chunk_behind_an_early_answer_closes_the_connection(api, caplog):
    """The answer does not wait for the body: its length is refused before it arrives."""
    caplog.set_level(logging.ERROR)
    early = b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\n" + CHUNKED + b"\r\n" + chunk(b"{")
    async with api() as (address, _):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(early)
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 404 ")
        writer.write(b"zz\r\n" + SMUGGLED)
        rest = await asyncio.wait_for(reader.read(), 20)
        assert b"HTTP/1.1 404" not in rest, "what follows is answered"
        writer.close()
    assert not caplog.records, "no traceback in the log"


@pytest.mark.parametrize(
    "sent", [REFUSED["both, a length of zero"], REFUSED["two lengths"], TAKEN["a length"]]
)
def test_the_metrics_port_answers_once_a_connection(sent):
    """It reads no body, so nothing of one may be left to be read as the next request."""
    address = f"127.0.0.1:{free_port()}"
    with metrics_port(address, []):
        got = asyncio.run(answers(address, sent.replace(b"POST /v1/completions", b"GET /metrics") + SMUGGLED))
    assert got.count(b"HTTP/1.") <= 1
