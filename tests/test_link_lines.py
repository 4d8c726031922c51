"""Lines to a server and elsewhere, and what a device says when its server cannot be reached."""

import asyncio
import contextlib
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timezone

import grpc
import pytest

from edge_client.link import link as links
from edge_client.link.link import Endpoint, GrpcStream
from edge_client.link.link_errors import explain
from edge_client.link.remote import RemoteSession, RetryPolicy
from opensled.core.errors import InvalidRequest, OpenSledError, ProtocolError, Unauthorized, Unreachable
from opensled.core.messages import Cancel, Moved, Open
from opensled.wire import codec
from tests.certificates import AUTHORITY, HERE, issued, written
from tests.fakes import continuation
from tests.serving import GREEDY, PROMPT, handling, linked, serving
from tests.system import until
from verify_server.access.security import Tenants, Tls

EXPECTED = tuple(continuation(PROMPT, GREEDY.max_tokens))
TOKENS = Tenants((("secret-1", "alice"),))
BRIEF = RetryPolicy(first_open=0.2)


@asynccontextmanager
async def pointing(*addresses, tls=None):
    """A server that sends everybody to the next of these addresses, the last one again and again."""
    waiting = list(addresses)

    async def sequence(requests, context):
        await context.read()
        moved = Moved(waiting.pop(0) if len(waiting) > 1 else waiting[0], b"ticket")
        await context.write(codec.encode_server(moved).SerializeToString())

    async with handling(sequence, tls) as address:
        yield address


async def answer(link, patience=RetryPolicy()) -> tuple[int, ...]:
    session = RemoteSession(link.connect, Open(PROMPT, GREEDY), patience)
    await session.open()
    while not session.truth.finish_reason:
        session.truth.extend(await session.next_verdict())
    await session.close()
    return session.truth.generated


async def test_an_answer_comes_from_where_the_device_was_sent():
    async with serving() as (manager, address), pointing(address) as gateway, linked(gateway) as link:
        for _ in range(3):
            assert await answer(link) == EXPECTED
        assert list(link._others) == [address], "one line for all of them"
        assert manager.stats.opened["new"] == 3


async def test_a_server_that_is_gone_is_left_for_the_first_one():
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(serving())
        gateway = await stack.enter_async_context(pointing("127.0.0.1:1", address))
        assert await answer(await stack.enter_async_context(linked(gateway))) == EXPECTED


async def test_a_server_that_sends_everybody_to_itself_is_left_in_time():
    async with pointing("") as gateway, linked(gateway) as link:
        with pytest.raises(Unreachable, match="in a row"):
            await answer(link, BRIEF)


async def test_a_token_follows_to_another_port_and_in_clear_text_to_no_other_host():
    async with AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(serving(TOKENS))
        gateway = await stack.enter_async_context(pointing(address))
        link = await stack.enter_async_context(linked(gateway, token="secret-1"))
        assert await answer(link) == EXPECTED
    port = address.partition(":")[2]
    async with pointing(f"localhost:{port}") as gateway, linked(gateway, token="secret-1") as link:
        with pytest.raises(ProtocolError, match="clear text"):
            await answer(link)
        assert not link._others


@pytest.mark.parametrize("name", [HERE, "elsewhere.example"])
async def test_with_tls_the_next_server_must_have_a_certificate_for_its_own_address(name, tmp_path):
    home = Tls(issued(AUTHORITY, HERE))
    async with AsyncExitStack() as stack:
        own = Tls(issued(AUTHORITY, name))
        manager, address = await stack.enter_async_context(serving(TOKENS, tls=own))
        gateway = await stack.enter_async_context(pointing(address, tls=home))
        options = {"tls": True, "tls_ca": written(tmp_path), "token": "secret-1"}
        link = await stack.enter_async_context(linked(gateway, **options))
        if name == HERE:
            assert await answer(link) == EXPECTED
        else:
            with pytest.raises(Unreachable, match="no server answers at"):
                await answer(link, BRIEF)
            assert not manager.stats.opened.total()


async def test_lines_that_nobody_uses_are_closed_and_no_other(monkeypatch):
    monkeypatch.setattr(links, "MAX_CHANNELS", 2)
    async with linked("127.0.0.1:1") as link:
        busy = link.connect("127.0.0.1:2")
        for port in (3, 4, 5):
            stream = link.connect(f"127.0.0.1:{port}")
            await stream.close()
            await until(lambda port=port: not link._others[f"127.0.0.1:{port}"].streams)
        assert list(link._others) == ["127.0.0.1:2", "127.0.0.1:5"]
        more = [link.connect(f"127.0.0.1:{port}") for port in (5, 6, 7)]
        assert list(link._others) == [f"127.0.0.1:{port}" for port in (2, 5, 6, 7)], "all are in use"
        for stream in (busy, *more):
            await stream.close()


# -- errors -----------------------------------------------------------------------------------------------------


async def words_of(address, **options):
    """What a device says that asks for the model there."""
    async with linked(address, **options) as link:
        with pytest.raises(OpenSledError) as caught:
            await link.describe()
    return str(caught.value)


@asynccontextmanager
async def talking(answer):
    """Another program, which answers with these bytes; yields its address."""

    async def take(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
            writer.write(answer)
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(take, HERE, 0)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


# -- nobody there -------------------------------------------------------------------------------------------------


async def test_nothing_listens_on_this_machine_until_a_server_starts():
    with socket.socket() as free:
        free.bind((HERE, 0))
        address = "{}:{}".format(*free.getsockname())
    words = f"nothing listens there; start one: opensled serve --listen {address}"
    for _ in range(4):
        assert await words_of(address) == f"no server answers at {address}: {words}"
        async with serving(port=address.rpartition(":")[2]), linked(address) as link:
            await link.describe()


def test_nothing_listens_on_another_machine():
    detail = "last error: UNKNOWN: ipv4:192.0.2.1:7411: Failed to connect to remote host: Connection refused"
    words = str(explain(grpc.StatusCode.UNAVAILABLE, detail, "192.0.2.1:7411", tls=False))
    assert "nothing listens there; check host and port" in words and "start one" not in words


def test_no_machine_has_the_name():
    words = asyncio.run(words_of("no-such-host.invalid:7411"))
    assert words.endswith(": no machine has this name; check its spelling, or give the IP address")


def test_no_bracket_of_grpc_is_left_over():
    for detail, words in (
        (
            "DNS resolution failed for hub:7411: [C-ares: Domain name not found])",
            "no machine has this name; check",
        ),
        ("errors resolving hub: [UNKNOWN: No route]", "at hub:7411 (No route); check"),
    ):
        assert words in str(explain(grpc.StatusCode.UNAVAILABLE, detail, "hub:7411", tls=False))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n", b"SSH-2.0-x\r\n"])
async def test_another_program_listens_there(answer):
    async with talking(answer) as address:
        words = await words_of(address)
    assert "another program listens there; name the address of `opensled serve`" in words
    assert "frame" not in words


# -- TLS ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "device", "words"),
    [
        (None, {"tls": True}, "it does not speak TLS; leave out --tls"),
        (HERE, {}, "it ended the connection; if it speaks TLS, pair this device"),
        (HERE, {"tls": True}, "its certificate comes from an authority that this device does not know; name"),
        ("a.example", {"tls": True, "known": True}, "its certificate is for another name; use"),
        (
            "asks",
            {"tls": True, "known": True},
            "it ended the connection; if it asks devices for certificates",
        ),
    ],
    ids=["plain", "tls", "unknown authority", "other name", "asks for certificates"],
)
async def test_the_two_ends_do_not_agree_on_tls(tmp_path, server, device, words):
    own = issued(AUTHORITY, HERE if server == "asks" else server) if server else None
    tls = Tls(own, AUTHORITY.cert_pem.bytes() if server == "asks" else b"") if own else None
    authority = {"tls_ca": written(tmp_path)} if device.pop("known", False) else {}
    async with serving(tls=tls) as (_, address):
        assert f": {words}" in (await words_of(address, **device, **authority))


@pytest.mark.parametrize(
    ("valid", "words"),
    [
        ((2001, 2002), "its certificate has expired; renew it on the server, or set this device's clock"),
        ((2101, 2102), "its certificate is not valid yet; set this device's clock"),
    ],
)
async def test_certificates_of_another_time(tmp_path, valid, words):
    begin, end = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in valid)
    own = issued(AUTHORITY, HERE, not_before=begin, not_after=end)
    async with serving(tls=Tls(own, b"")) as (_, address):
        assert f": {words}" in (await words_of(address, tls=True, tls_ca=written(tmp_path)))


# -- statuses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, InvalidRequest, "larger than hub:1 takes"),
        (grpc.StatusCode.UNAUTHENTICATED, Unauthorized, "hub:1: what it says"),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolError, "a gRPC server, but not of OpenSLED"),
        (grpc.StatusCode.UNAVAILABLE, OpenSledError, "(what it says); check the address"),
        (grpc.StatusCode.INTERNAL, OpenSledError, "hub:1: what it says"),
    ],
)
def test_a_status_is_an_error_of_ours(code, kind, words):
    error = explain(code, "what it says", "hub:1", tls=False)
    assert isinstance(error, kind) and words in str(error)


class Refused:
    """A call whose write fails before its status is there."""

    def __init__(self) -> None:
        self.status = asyncio.get_running_loop().create_future()

    async def wait_for_connection(self):
        pass

    async def write(self, data):
        asyncio.get_running_loop().call_later(0.05, self.status.set_result, grpc.StatusCode.UNAUTHENTICATED)
        raise grpc.aio.UsageError("the write failed")

    async def code(self):
        return await self.status

    async def details(self):
        return "this server requires a bearer token"


async def test_a_refusal_that_comes_just_after_the_failed_write_is_told():
    """A busy device heard that the stream had ended, and tried again."""
    stream = GrpcStream(Refused(), Endpoint("127.0.0.1:7411"))
    with pytest.raises(Unauthorized):
        await stream.send(Cancel())
