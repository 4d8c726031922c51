"""A device that is sent elsewhere over real gRPC: lines to other servers, with the same TLS and token."""

from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from edge_client.link import link as links
from edge_client.link.remote import RemoteSession, RetryPolicy
from opensled.core.errors import ProtocolError, Unreachable
from opensled.core.messages import Moved, Open
from opensled.wire import codec
from tests.certificates import AUTHORITY, HERE, issued, written
from tests.fakes import continuation
from tests.serving import GREEDY, PROMPT, linked, serving
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

    handler = grpc.method_handlers_generic_handler(
        codec.SERVICE_NAME, {"Sequence": grpc.stream_stream_rpc_method_handler(sequence)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    if tls:
        credentials = grpc.ssl_server_credentials([(tls.identity.key, tls.identity.cert)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


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
